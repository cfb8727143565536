"""Steps that torch's allocator was replayed over."""

from __future__ import annotations

import pytest

from benchmarks.cases import load
from benchmarks.replayed import steps
from benchmarks.score import as_traced, resolved
from memcheck.memory.estimate import estimate

OFF = 0.006
"""No estimate counts the cast that a gather copies from (``flat_foreach_copy_input``), and a chunked loss reduces the
head's gradient in pieces."""


@pytest.mark.slow
def test_the_pools_of_all_streams_are_predicted() -> None:
    """What every stream holds at its own highest point, together, is what an estimate says."""
    known = steps()
    off = {}
    for line in load("allocator.json")["steps"]:
        if len(line.get("streams", ())) < 2:
            continue
        case = known[line["id"]]
        job, gpu, overhead = resolved(case.plan)
        ranks = estimate(as_traced(case, job), gpu, overhead).ranks
        number = case.pipeline_rank or 0
        rank = next(r for r in ranks if r.pipeline_rank == number)
        off[case.id] = (rank.step.peak.allocated_bytes + rank.apart_bytes) / sum(line["streams"]) - 1
    assert off
    assert {name: round(error, 4) for name, error in off.items() if abs(error) > OFF} == {}


def test_every_line_is_a_step_that_can_be_traced_again() -> None:
    """Lines of training steps are of known plans, so that the replay can be redone."""
    trained = {line["id"] for line in load("allocator.json")["steps"] if not line["id"].startswith("serving.")}
    assert trained <= steps().keys()
