"""A step that is recorded before its sizes are known, and what sizes make of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.engine_speed import forget
from memcheck.accounts.program import NOTHING, ComponentSizes, Evaluated, Recorder, Sum, Sums
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.torch.recording import recorded
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan

PLACES = 7


def vector(chance: random.Random) -> list[int]:
    """How often each size counts; a sum may lack what is let go of later."""
    return [chance.randint(-3, 5) for _ in range(PLACES)]


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("moments", [0, 1, 2, 9])
def test_sums_by_their_changes_are_the_sums(moments: int, before: int) -> None:
    """Many sums, each told by what it has more or less than the one before, none of it or one place included.

    They come in any order, and their places may begin behind others.
    """
    chance = random.Random(moments)  # noqa: S311 - nothing is secret
    for _ in range(200):
        sizes = [chance.randint(1, 10**9) for _ in range(PLACES)]
        rows, changes, last = [], [], [0] * PLACES
        for _ in range(moments):
            row = chance.choice([last, vector(chance)])
            changes.append([(before + i + 1, n - b) for i, (n, b) in enumerate(zip(row, last, strict=True)) if n != b])
            rows.append(row)
            last = row
        totals = [sum(n * size for n, size in zip(row, sizes, strict=True)) for row in rows]
        order = chance.sample(range(moments), moments)
        assert list(Sums(changes, order, before).totals(sizes)) == [totals[index] for index in order]
        assert [Sum([(i + 1, n) for i, n in enumerate(row) if n]).total(sizes) for row in rows] == totals


def test_sizes_decide_which_moment_is_the_highest() -> None:
    """One record, two sets of sizes: the highest moment of each instant, its bytes and its components are of these."""
    recorder = Recorder()
    recorder.hold("activations", 1)
    recorder.high("forward", ComponentSizes((("temporaries", 2),), 2, 0), "a unit")
    recorder.hold("gradients", 3, 2)
    recorder.mark("forward", "behind it")
    recorder.release("activations", 1)
    recorder.mark("backward", "without activations")
    program = recorder.program(3)

    def found(*sizes: int) -> list[tuple[str, int, str, dict[str, int]]]:
        evaluated = Evaluated(program, program.units(sizes), (sizes,))
        moments = [evaluated.moment(i, evaluated.mark(i).operation) for i in range(len(evaluated.tops))]
        assert tuple((m.name, m.bytes) for m in moments) == evaluated.tops
        return [(m.name, m.bytes, m.operation, {k: v for k, v in m.live if v}) for m in moments]

    at_rest = ("backward", 6, "without activations", {"gradients": 6})
    assert found(5, 7, 3) == [("forward", 12, "a unit", {"activations": 5, "temporaries": 7}), at_rest]
    assert found(5, 6, 3) == [("forward", 11, "a unit", {"activations": 5, "temporaries": 6}), at_rest]  # the first
    assert found(5, 2, 3) == [("forward", 11, "behind it", {"activations": 5, "gradients": 6}), at_rest]


def test_units_and_groups_are_summed_apart() -> None:
    """Moments with two sets of groups are those of sizes that are given at once, and the second does not see the first."""
    recorder = Recorder()
    recorder.hold("activations", 1)
    recorder.hold("communication_buffers", 2)
    recorder.mark("forward", "gathered")
    recorder.release("communication_buffers", 2)
    recorder.hold("gradients", 3)
    recorder.mark("forward", "reduced")
    split, whole = recorder.program(1), recorder.program(3)
    for groups in ((10, 20), (30, 4), (10, 20)):
        assert list(split.with_groups(split.units((5,)), groups)) == list(whole.units((5, *groups)))


def test_what_repeats_counts_as_often() -> None:
    """A stretch that repeats changes what lives as often as it runs; minus one time undoes it."""
    recorder = Recorder()
    recorder.hold("activations", 1)
    before = recorder.here
    recorder.hold("activations", 2)
    recorder.release("activations", 1)
    recorder.hold_components(ComponentSizes((("temporaries", 3),), 3), 2)
    recorder.repeat(before, 4)
    recorder.mark("forward", "five times")
    recorder.repeat(before, -1)
    recorder.mark("backward", "none")
    program = recorder.program(3)
    found = Evaluated(program, program.units((1, 100, 10_000)), ((1, 100, 10_000),))
    assert found.tops == (("forward", 1 + 5 * (100 - 1 + 20_000)), ("backward", 1))


def test_nothing_is_held_of_no_size() -> None:
    """The place of no size leaves no trace in a record, and what is muted no moment."""
    recorder = Recorder()
    recorder.hold("activations", NOTHING)
    assert recorder.here == 0
    recorder.muted = True
    recorder.mark("forward", "unseen")
    recorder.muted = False
    recorder.mark("backward", "seen")
    assert [instant for instant, _, _ in recorder.program(0).instants] == ["backward"]


def peak(**training: Any) -> int:
    """Allocated bytes of a plan, looked for as a grid does."""
    plan = {
        "memcheck": 1,
        "model": "llama-3.2-1b",
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8},
        "parallelism": {"pipeline": 2, "zero_stage": 3},
        "training": {
            "framework": "torchtitan",
            "micro_batch_size": 1,
            "sequence_length": 1024,
            "gradient_accumulation_steps": 8,
            "precision": "bf16-mixed",
            "optimizer": "adamw",
            **training,
        },
    }
    job = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    return estimate(job.job, job.gpu, job.overhead, every_rank=False).allocated_bytes


def test_points_that_differ_in_sizes_share_a_record() -> None:
    """Other batches and sequences need no record of their own, and come to other figures; full recompute needs one."""
    forget()
    peak()
    before = recorded.cache_info().misses
    found = {peak(micro_batch_size=b, sequence_length=s) for b in (1, 2, 3) for s in (512, 1000, 4096)}
    assert len(found) == 9
    assert recorded.cache_info().misses == before
    peak(activation_checkpointing="full")
    assert recorded.cache_info().misses > before
