"""Each goal finds what it says, in an order that does not change."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from memcheck.errors import UsageError
from memcheck.job.types import InferenceJob
from memcheck.judge import Gate, check_document
from memcheck.plan.read import load_documents, with_changes
from memcheck.what_if.remedies.changes import UNCHANGED
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.explore import explore
from memcheck.what_if.search.goals import SEARCHES, search
from memcheck.what_if.search.rank import ParetoFilter, fastest, split_of
from memcheck.what_if.search.space import space_of
from tests.what_if.search.contexts import HOPELESS, PIPELINED, SERVING, SMALL, TITAN, TRAINING, context_of

pytestmark = pytest.mark.slow

PLANS = {**TRAINING, "serving": SERVING}


@pytest.mark.parametrize(
    ("name", "goal"),
    [
        *((name, "fit") for name in PLANS),
        *(("small", goal) for goal in SEARCHES if goal != "fit"),
        *(("pipelined", goal) for goal in SEARCHES if goal != "fit"),
        *(("serving", goal) for goal in SEARCHES if goal not in {"fit", "throughput"}),
    ],
)
def test_whatever_is_found_passes_check(name: str, goal: str) -> None:
    """The first plans of every goal have no error, and need what was said."""
    text = PLANS[name]
    found = search(Pricer(context_of(text)), goal).found[:3]
    assert found
    (document,) = load_documents("plan.yaml", text.encode())
    for priced in found:
        result = check_document(document, Gate(changes=priced.changes))
        assert [f.message for f in result.findings if f.severity == "error"] == []
        assert result.estimate is not None
        assert result.estimate.device_bytes == priced.estimate.device_bytes
        assert result.estimate.utilization <= 0.9


def test_the_fastest_are_those_of_the_whole_space() -> None:
    """Pricing from the fastest on finds the same plans, in the same order, as pricing all, sorting them and taking the
    first of each split.
    """
    context = context_of(PIPELINED)
    space = space_of(context, UNCHANGED, faster=True)
    kept = ParetoFilter()
    firsts: dict[object, float | None] = {}
    for p in sorted(explore(Pricer(context), space), key=fastest):
        split = split_of(p.resolved.job.layout)
        if split not in firsts and kept.adds(p):
            firsts[split] = p.slowdown
    found = search(Pricer(context), "throughput", 6).found
    assert len(firsts) > 6
    assert [p.slowdown for p in found] == list(firsts.values())[:6]
    assert all(p.slowdown is not None for p in found)
    assert len({split_of(p.resolved.job.layout) for p in found}) == 6


def test_fewer_splits_than_asked_for_come_with_more_settings() -> None:
    """Where the parallelism is kept there is one split: its settings are the answers, the fastest first."""
    context = context_of(PIPELINED)
    found = search(Pricer(context, keep=("parallelism",)), "throughput", 6).found
    assert len(found) > 2
    assert len({split_of(p.resolved.job.layout) for p in found}) == 1
    assert [p.slowdown for p in found] == sorted(p.slowdown or 0.0 for p in found)
    assert len({str(p.changes) for p in found}) == len(found)


def test_no_smaller_cluster_would_do() -> None:
    """The fewest GPUs are fewer than written, and half of them do not hold the plan."""
    context = context_of(TITAN)
    first = search(Pricer(context), "gpus").found[0]
    size = first.resolved.job.layout.world_size
    assert size < context.layout.world_size
    smaller = TITAN.replace("gpus_per_node: 8", f"gpus_per_node: {size // 2}").replace("zero_stage: 3", "zero_stage: 0")
    answer = search(Pricer(context_of(smaller)), "throughput")
    assert answer.found == ()


@pytest.mark.parametrize(("goal", "name"), [("max-batch", "micro_batch_size"), ("max-sequence", "sequence_length")])
def test_one_step_more_does_not_fit(goal: str, name: str) -> None:
    """The largest value fits, and the next one does not."""
    context = context_of(SMALL)
    best = search(Pricer(context), goal).found[0]
    value = best.changes[f"training.{name}"]
    step = 1 if goal == "max-batch" else 1024
    limit = context.architecture.max_position_embeddings if context.architecture else 0
    if goal == "max-sequence" and value + step > limit:
        return  # what ends it is the model
    (document,) = load_documents("plan.yaml", SMALL.encode())
    steps = {key: number for key, number in best.changes.items() if key != "training.gradient_accumulation_steps"}
    document = with_changes(document, {**steps, f"training.{name}": value + step})
    result = check_document(document, Gate())
    assert result.estimate is not None
    assert result.estimate.utilization > 0.9


def test_the_largest_batch_of_a_server() -> None:
    """While serving it is the number of sequences that grows."""
    best = search(Pricer(context_of(SERVING.replace("tensor: 2", "tensor: 4"))), "max-batch").found[0]
    assert isinstance(best.resolved.job, InferenceJob)
    assert best.resolved.job.batch_size > 8


def test_nothing_fits_is_proven_and_the_way_out_named() -> None:
    """A model that two small GPUs can never hold: every plan was judged, and a cluster that holds it is named."""
    answer = search(Pricer(context_of(HOPELESS)), "fit")
    assert answer.exhausted
    assert answer.found == ()
    assert answer.tally.fitting == 0
    assert answer.tally.considered > 10
    assert answer.smallest is not None
    assert answer.smallest.estimate.utilization <= 0.9
    assert answer.smallest.resolved.job.layout.world_size > 2


def test_without_rates_there_is_no_fastest() -> None:
    """A GPU of which only the memory is known has no step's time, in training and in serving."""
    unknown = "hardware: {gpu: {name: prototype, memory_gib: 80}, gpus_per_node: 8}"
    for text in (TITAN, SERVING):
        lines = [unknown if line.startswith("hardware:") else line for line in text.splitlines()]
        with pytest.raises(UsageError):
            search(Pricer(context_of("\n".join(lines) + "\n")), "throughput")


def test_the_fastest_way_to_serve_keeps_the_batch() -> None:
    """Every sequence and all of its context, with the same numbers: what is faster is the layout."""
    pricer = Pricer(context_of(SERVING))
    answer = search(pricer, "throughput")
    times = [p.slowdown for p in answer.found]
    assert times == sorted(times, key=lambda t: t or 0.0)
    for priced in answer.found:
        job = priced.resolved.job
        assert isinstance(job, InferenceJob)
        assert (job.batch_size, job.context_length, job.weights, job.kv_cache) == (8, 32768, "bf16", "bf16")


def test_the_order_does_not_depend_on_the_process() -> None:
    """Two processes with other hash seeds print the same."""
    script = (
        "from tests.what_if.search.contexts import *\n"
        "from memcheck.what_if.search.goals import search\n"
        "from memcheck.what_if.remedies.price import Pricer\n"
        "for goal in ('fit', 'max-batch'):\n"
        "    print([p.changes for p in search(Pricer(context_of(PIPELINED)), goal).found])\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1
    assert PIPELINED.splitlines()[1].encode() not in told
