"""Sums of sizes that are counted before the sizes are known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.engine_speed import forget
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.memory.open_timeline import OpenTimeline, digit
from memcheck.memory.open_walk import Sum, Sums, _walked
from memcheck.plan.read import build_plan

PLACES = 7


def vector(chance: random.Random) -> list[int]:
    """How often each size counts; a sum may lack what is let go of later."""
    return [chance.randint(-3, 5) for _ in range(PLACES)]


def packed(counts: list[int]) -> int:
    """The same as one number."""
    return sum(count * digit(place) for place, count in enumerate(counts))


def test_covering_is_by_every_size() -> None:
    """One moment covers another if it has no size fewer times, whatever the signs."""
    chance, timeline = random.Random(7), OpenTimeline(PLACES)  # noqa: S311 - nothing is secret
    found = set()
    for _ in range(2000):
        one, other = vector(chance), vector(chance)
        if chance.random() < 0.5:
            other = [n - chance.randint(0, 2) for n in one]
        expected = all(a >= b for a, b in zip(one, other, strict=True))
        assert timeline.covers(packed(one), packed(other)) == expected
        found.add(expected)
    assert found == {True, False}


@pytest.mark.parametrize("moments", [0, 1, 2, 9])
def test_sums_by_their_changes_are_the_sums(moments: int) -> None:
    """Many sums, each told by what it has more or less than the one before, none of it or one place included."""
    chance = random.Random(moments)  # noqa: S311 - nothing is secret
    for _ in range(200):
        sizes = [chance.randint(1, 10**9) for _ in range(PLACES)]
        rows, changes, before = [], [], [0] * PLACES
        for _ in range(moments):
            row = chance.choice([before, vector(chance)])
            changes.append([(i, n - b) for i, (n, b) in enumerate(zip(row, before, strict=True)) if n != b])
            rows.append(row)
            before = row
        totals = [sum(n * size for n, size in zip(row, sizes, strict=True)) for row in rows]
        assert list(Sums(changes).of(sizes)) == totals
        assert [Sum([(i, n) for i, n in enumerate(row) if n]).of(sizes) for row in rows] == totals


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


def test_points_that_differ_in_sizes_share_a_walk() -> None:
    """Other batches and sequences need no walk of their own, and come to other figures; full recompute needs one."""
    forget()
    peak()
    before = _walked.cache_info().misses
    found = {peak(micro_batch_size=b, sequence_length=s) for b in (1, 2, 3) for s in (512, 1000, 4096)}
    assert len(found) == 9
    assert _walked.cache_info().misses == before
    peak(activation_checkpointing="full")
    assert _walked.cache_info().misses > before
