"""Steps that torch's allocator was replayed over."""

from __future__ import annotations

import pytest

from benchmarks.cases import load
from benchmarks.replayed import steps
from benchmarks.score import as_traced, rank_of, resolved
from memcheck.accounts.state import MIB
from memcheck.frameworks.torch.data_parallel import uses_flat_parameters
from memcheck.job.types import TrainingJob
from memcheck.memory.allocator import ENOUGH, residuals
from memcheck.memory.estimate import estimate
from memcheck.memory.interval import PlanFigures, ends, interval_kinds
from memcheck.memory.overhead import NOTHING_OUTSIDE

OFF = 0.00003
OF_EXPERTS = 0.0035
"""torchtitan's experts are gathered beside the groups that they are not part of."""
OF_CHUNKS = 0.0105
"""A chunked loss reduces the head's gradient in pieces: what has been reduced of it is counted on the default stream,
and on that of reductions at its own highest point."""


@pytest.mark.slow
def test_the_pools_of_all_streams_are_predicted() -> None:
    """What every stream holds at its own highest point, together, is what an estimate says."""
    known = steps()
    off, seen = {}, 0
    for line in load("allocator.json")["steps"]:
        if len(line.get("streams", ())) < 2:
            continue
        case = known[line["id"]]
        job, gpu, overhead = resolved(case.plan)
        if isinstance(job, TrainingJob) and uses_flat_parameters(job):
            continue  # what FSDP1's streams hold apart from each other is read, not predicted
        ranks = estimate(as_traced(case, job), gpu, overhead).ranks
        number = case.pipeline_rank or 0
        rank = next(r for r in ranks if r.pipeline_rank == number)
        allowed = OF_CHUNKS if "chunked" in case.id else OF_EXPERTS if ".dsv3" in case.id or "ep8" in case.id else OFF
        error = (rank.step.peak.allocated_bytes + rank.pools.apart) / sum(line["streams"]) - 1
        seen += 1
        if abs(error) > allowed:
            off[case.id] = round(error, 5)
    assert seen
    assert off == {}


def test_every_line_is_a_step_that_can_be_traced_again() -> None:
    """Lines of training steps are of known plans, so that the replay can be redone."""
    trained = {line["id"] for line in load("allocator.json")["steps"] if not line["id"].startswith("serving.")}
    assert trained <= steps().keys()


@pytest.mark.slow
def test_no_replayed_step_needs_more_than_its_upper_end() -> None:
    """With default segments and with expandable ones, as if nothing else were uncertain."""
    tables = residuals()._replace(allocated={}, outside={})
    above = {}
    for line in load("allocator.json")["steps"]:
        case = steps().get(line["id"])
        if case is None:
            continue
        job, gpu, overhead = resolved(case.plan)
        for setting in ("default", "expandable"):
            under = as_traced(case, job)._replace(expandable_segments=setting == "expandable")
            rank = rank_of(case, estimate(under, gpu, overhead))
            held = PlanFigures(rank.peak.allocated_bytes, NOTHING_OUTSIDE, rank.pools)
            upper = ends(tables, interval_kinds(under), held, None).needed[1]
            if line[setting][1] * rank.peak.allocated_bytes > upper + MIB:
                above[line["id"], setting] = line[setting][1] * rank.peak.allocated_bytes / upper
    assert above == {}


def test_steps_that_are_highest_in_the_optimizer_say_where_they_fail() -> None:
    """On a little less than they need: in the optimizer, whose share they tell of, or before it."""
    fails = [line["fails"] for line in load("allocator.json")["steps"] if "fails" in line]
    assert len(fails) >= ENOUGH
    assert {phase for each in fails for phase in each.values()} <= {"forward", "loss", "backward", "optimizer"}
