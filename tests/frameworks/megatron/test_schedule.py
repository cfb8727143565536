"""The account of a pipeline does not count micro-batch by micro-batch, and says the same as if it did."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcheck.accounts.ranks import Unit
from memcheck.autograd.curve import Curve, Peak
from memcheck.frameworks.megatron.fsdp import Extra
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.schedule import SchedulePosition, runs, settled
from memcheck.frameworks.megatron.step import Rank, SchedulePeaks
from tests.frameworks.megatron.every_event import between, every_pass, expanded, highest
from tests.frameworks.megatron.models import grid, job, llama_8b


def high(label: str, n_bytes: int) -> Peak:
    """A highest point whose bytes are of two components."""
    parts = (("temporaries", n_bytes // 3), ("logits_and_loss", n_bytes - n_bytes // 3))
    return Peak(n_bytes, label, tuple([part for part in parts if part[1]]))


@st.composite
def ranks(draw: st.DrawFn, chunks: int) -> Rank:
    """A rank of so many chunks, some of them alike, each of a few units that are alike in runs of one to nine."""
    size = st.integers(0, 9)
    every: list[tuple[Unit, ...]] = []
    extras: list[tuple[Extra, ...]] = []
    for chunk in range(chunks):
        units: list[Unit] = []
        around: list[Extra] = []
        if every and draw(st.booleans()):
            like = draw(st.integers(0, chunk - 1))
            every.append(tuple([unit._replace(name=f"{unit.name} again") for unit in every[like]]))
            extras.append(extras[like])
            continue
        for run in range(draw(st.integers(1, 3))):
            saved = draw(size)
            forward, backward = saved + draw(size), saved + draw(size)  # what is saved is there at the highest point
            components = (("activations", saved),) if saved else ()
            curve = Curve(
                saved,
                (),
                components,
                0,
                high("up", forward),
                high("down", backward),
                0,
                until_backward_ends=draw(size) // 5,
            )
            kind, extra = draw(st.sampled_from(("block", "block", "head"))), Extra(draw(size) // 3, draw(size) // 3)
            for layer in range(draw(st.integers(1, 9))):
                units.append(Unit(kind, f"layer {chunk} {run} {layer}", (), curve, curve))
                around.append(extra)
        every.append(tuple(units))
        extras.append(tuple(around))
    edges = [draw(size) for _ in range(4)]
    return Rank(tuple(every), (), *edges, extras=tuple(extras) if draw(st.booleans()) else ())


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    data=st.data(),
    pipeline=st.integers(1, 6),
    place=st.integers(0, 5),
    chunks=st.integers(1, 4),
    micro_batches=st.integers(1, 40),
    longer=st.integers(0, 3),
    overlaps=st.booleans(),
)
def test_runs_say_what_every_event_says(
    data: st.DataObject, pipeline: int, place: int, chunks: int, micro_batches: int, longer: int, overlaps: bool
) -> None:
    """The highest moments of a step with repetition cut are those of the whole step counted event by event.

    Bytes, components, the unit and the pass are held against it; among equally high moments any may be named.
    """
    chunks = chunks if pipeline > 1 else 1  # only a pipeline's ranks have several
    where = SchedulePosition(place % pipeline, pipeline, chunks, pipeline + longer, overlaps)
    rank = data.draw(ranks(chunks))
    counted = highest(rank, every_pass(where, micro_batches))
    found = SchedulePeaks(rank, runs(where, micro_batches))
    tops = dict(found.tops)
    rests = sum(between(units) for units in rank.chunks) + sum(extras[0].forward_bytes for extras in rank.extras)
    assert (tops.pop("init"), tops.pop("optimizer")) == (rests, rests)
    assert tops == {instant: moments[0].bytes for instant, moments in counted.items()}
    for index, (instant, _) in enumerate(found.tops):
        if instant in counted:
            moment, at = found.moment(index), found.pass_at(index)
            live = {name: n for name, n in moment.live if n}
            assert any(
                (event.of, event.counts, event.first, event.where)
                == (at.running_pass, at.micro_batches_by_chunk, at.before_first_backward, moment.operation)
                and {name: n for name, n in event.live.items() if n} == live
                for event in counted[instant]
            )


@settings(max_examples=200, deadline=None)
@given(pipeline=st.integers(1, 6), place=st.integers(0, 5), chunks=st.integers(1, 4), groups=st.integers(1, 3))
def test_short_steps_are_not_cut(pipeline: int, place: int, chunks: int, groups: int) -> None:
    """Where nothing repeats, the runs are the step's passes one by one."""
    micro_batches = min(groups * pipeline, 2 * pipeline)
    where = SchedulePosition(place % pipeline, pipeline, chunks, pipeline)
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
    first = SchedulePosition(0, pipeline, chunks, pipeline + longer, overlaps)
    fewer = settled(first, micro_batches)
    assert fewer <= micro_batches
    for rank in range(pipeline):
        assert runs(first._replace(rank=rank), fewer) == runs(first._replace(rank=rank), micro_batches)


def test_no_cost_per_micro_batch() -> None:
    """A thousand times as many micro-batches have the same runs, whatever the number of stages."""
    for chunks in (1, 8):
        assert (
            runs(SchedulePosition(3, 512, chunks, 512), 4096) == runs(SchedulePosition(3, 512, chunks, 512), 512 * 4096)
            or chunks == 1
        )
        assert len(runs(SchedulePosition(3, 512, chunks, 512), 512 * 4096)) < 40 * chunks


@pytest.mark.slow
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
