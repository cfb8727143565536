"""Runs whose steps have sequences of different lengths."""

from __future__ import annotations

from memcheck.accounts.state import MIB
from memcheck.verify.replay.runs import AllocationSequence, Event, TwoLengths, alike, peaks, varied


def traced(size: int) -> tuple[tuple[Event, ...], tuple[int, ...]]:
    """Three steps, each of which frees the gradient of the one before and makes its own beside an activation."""
    asked = AllocationSequence()
    asked.allocated(1, 100 * MIB)  # the parameters
    for step in range(3):
        if step:
            asked.begin_step()
        asked.freed(3)
        asked.allocated(2, size)
        asked.allocated(3, 10 * MIB)
        asked.freed(2)
    return tuple(asked.events), tuple(asked.steps)


def test_blocks_that_grow_with_the_length_follow_it() -> None:
    """At every length a block is as long as the line through both traces says; what does not depend on it stays."""
    long, at = traced(80 * MIB)
    short, _ = traced(20 * MIB)
    two = TwoLengths(long=long, short=short, steps=(at[0], at[1]), share=0.25)
    events = varied(two, (1.0, 0.5, 0.25))
    made = [size // MIB for _, size, _ in events[at[1] :] if size]
    assert made == [80, 10, 40, 10, 20, 10]


def test_every_block_is_freed_by_the_step_that_its_trace_says() -> None:
    """A gradient lives into the next step and no longer, so that no length adds to what rests."""
    long, at = traced(80 * MIB)
    short, _ = traced(20 * MIB)
    two = TwoLengths(long=long, short=short, steps=(at[0], at[1]), share=0.25)
    top, _ = peaks(varied(two, (0.5,) * 20))
    assert top == peaks(varied(two, (0.5, 0.5)))[0] == 150 * MIB


def test_steps_have_to_be_alike() -> None:
    """Traces with other blocks, or with other steps, make no run."""
    long, at = traced(80 * MIB)
    short, other = traced(20 * MIB)
    assert alike(long, short, at, other)
    assert not alike(long, short[:-1], at, other)
    assert not alike(long, short, at, (at[0] + 1, at[1]))
    assert not alike(long, short, at[:1], other[:1])
