"""What segments leave beside blocks that rest."""

from __future__ import annotations

import random

import pytest

from memcheck.accounts.state import MIB, Unfilled, unfilled
from memcheck.verify.replay.allocator import Allocator


@pytest.mark.parametrize(
    ("blocks", "left"),
    [
        ([7] * 4, 12),
        ([8, 8, 2, 2] * 3, 0),
        ([5] * 8, 0),
        ([7] * 2 + [6], 0),
        ([11] * 2, 2),
        ([1] * 3, 0),
        ([], 0),
    ],
    ids=["two in twenty", "small ones fill", "four in twenty", "a rest that fits", "odd", "small pool", "none"],
)
def test_a_segment_of_20_mib_is_left_unfilled_by_what_does_not_divide_it(blocks: list[int], left: int) -> None:
    """What no block of the kind fits into; blocks of the small pool share segments of their own."""
    assert unfilled([size * MIB for size in blocks]) == left * MIB


@pytest.mark.parametrize("seed", range(6))
def test_the_allocator_leaves_as_much(seed: int) -> None:
    """Blocks that are made one after the other and stay: what is reserved and not live, but for rests that one fits."""
    drawn = random.Random(seed)  # noqa: S311
    sizes = [drawn.randrange(3, 40) * MIB // 2 for _ in range(drawn.randrange(2, 5))]
    blocks = [drawn.choice(sizes) for _ in range(60)]
    allocator = Allocator()
    for name, size in enumerate(blocks):
        allocator.allocate(name, size)
    fitting = [b.size for b in allocator._pools[1].free_of(0).all() if b.size >= min(blocks)]
    assert unfilled(blocks) == allocator.reserved - sum(blocks) - sum(fitting)


def test_gradients_and_states_come_when_activations_are_gone() -> None:
    """What a first backward has let go of is divided, so that only what does not find room there has new segments."""
    left = Unfilled(parameters=100, later=300, later_bytes=1200)
    assert [left.among(freed) for freed in (0, 400, 1200, 5000)] == [400, 300, 100, 100]
    assert Unfilled(100, 0, 0).among(0) == 100
    assert left.most == 400
