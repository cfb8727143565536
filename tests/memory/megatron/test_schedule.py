"""The account of a pipeline does not count micro-batch by micro-batch, and says the same as if it did."""

from __future__ import annotations

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from memcheck.accounts.unit import Unit
from memcheck.autograd.curve import Curve, High
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.schedule import Place, runs, settled
from memcheck.frameworks.megatron.step import Rank, fullest
from tests.memory.megatron.every_event import every_pass, expanded, fullest_of
from tests.memory.megatron.models import grid, job, llama_8b


def rank_of(saved: list[int], boundary: int, mask: int) -> Rank:
    """A rank whose chunks keep so many bytes of each micro-batch."""
    high = High(0, "", ())
    chunks = tuple(
        (Unit("block", f"layer {i}", (), *(Curve(n, (), (("activations", n),), 0, high, high, 0),) * 2),)
        for i, n in enumerate(saved)
    )
    return Rank(chunks, (), mask, boundary, boundary, 0)


@settings(max_examples=400, deadline=None)
@given(
    pipeline=st.integers(1, 6),
    place=st.integers(0, 5),
    saved=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    micro_batches=st.integers(1, 40),
    longer=st.integers(0, 3),
    boundary=st.integers(0, 9),
    mask=st.integers(0, 9),
    overlaps=st.booleans(),
)
def test_runs_say_what_every_event_says(
    pipeline: int,
    place: int,
    saved: list[int],
    micro_batches: int,
    longer: int,
    boundary: int,
    mask: int,
    overlaps: bool,
) -> None:
    """Fullest moments from runs, with repetition cut, are those of the whole step counted event by event."""
    where = Place(place % pipeline, pipeline, len(saved), pipeline + longer, overlaps)
    rank = rank_of(saved, boundary, mask)
    counted = fullest_of(rank, every_pass(where, micro_batches))
    found = fullest(rank, runs(where, micro_batches))
    assert {p: m.bytes for p, m in found.items()} == {p: m.bytes for p, m in counted.items()}


@settings(max_examples=200, deadline=None)
@given(pipeline=st.integers(1, 6), place=st.integers(0, 5), chunks=st.integers(1, 4), groups=st.integers(1, 3))
def test_short_steps_are_not_cut(pipeline: int, place: int, chunks: int, groups: int) -> None:
    """Where nothing repeats, the runs are the step's passes one by one."""
    micro_batches = min(groups * pipeline, 2 * pipeline)
    where = Place(place % pipeline, pipeline, chunks, pipeline)
    assert list(expanded(runs(where, micro_batches))) == every_pass(where, micro_batches)


@given(
    pipeline=st.integers(1, 9),
    chunks=st.integers(1, 4),
    longer=st.integers(0, 3),
    micro_batches=st.integers(1, 90),
    overlaps=st.booleans(),
)
def test_every_rank_settles_into_the_same_schedule(
    pipeline: int, chunks: int, longer: int, micro_batches: int, overlaps: bool
) -> None:
    """With as many micro-batches as ``settled`` says, each rank runs what it runs with all of them."""
    first = Place(0, pipeline, chunks, pipeline + longer, overlaps)
    fewer = settled(first, micro_batches)
    assert fewer <= micro_batches
    for rank in range(pipeline):
        assert runs(first._replace(rank=rank), fewer) == runs(first._replace(rank=rank), micro_batches)


def test_no_cost_per_micro_batch() -> None:
    """A thousand times as many micro-batches have the same runs, whatever the number of stages."""
    for chunks in (1, 8):
        assert runs(Place(3, 512, chunks, 512), 4096) == runs(Place(3, 512, chunks, 512), 512 * 4096) or chunks == 1
        assert len(runs(Place(3, 512, chunks, 512), 512 * 4096)) < 40 * chunks


def test_a_long_pipeline_is_quick() -> None:
    """512 stages of 8 chunks and 4096 micro-batches cost about as much as 64 times 8 stages and 32 micro-batches."""

    def seconds(stages: int, micro_batches: int) -> float:
        layers = llama_8b(8 * stages)
        case = job(
            layers,
            grid(stages, pipeline=stages, virtual_stages=8),
            gradient_accumulation_steps=micro_batches,
        )
        started = time.process_time()
        megatron_ranks(case, layers)
        return time.process_time() - started

    seconds(4, 8)  # replays the curves
    assert seconds(512, 4096) < 3 * 64 * seconds(8, 32) + 0.1
