"""A run whose steps have sequences of different lengths, from traces of two lengths.

A step asks for the same blocks in the same order whatever its sequence length is; only their sizes differ, and those of
fused attention are linear in it. So two traces give every block's size at any length, and the last traced step can be
repeated with lengths of one's choice.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.record import Record
from memcheck.verify.replay.blocks import rounded
from memcheck.verify.replay.sequence import FREED, Event


class TwoLengths(Record):
    """Traces of one plan, with as many events in each step."""

    long: tuple[Event, ...]
    short: tuple[Event, ...]
    steps: tuple[int, int]
    """Where the second and the third step begin."""
    share: float
    """The short length over the long one."""


def alike(long: tuple[Event, ...], short: tuple[Event, ...], steps: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether both traces ask for the same blocks, and their last two steps do."""
    if len(long) != len(short) or steps != other or len(steps) != 2:
        return False
    second, third = steps
    same = all(a[0] == b[0] and (a[1] == FREED) == (b[1] == FREED) for a, b in zip(long, short, strict=True))
    return same and len(long) - third == third - second


def varied(two: TwoLengths, lengths: Sequence[float]) -> list[Event]:
    """The run: two steps as they were traced, short, then one step for each length, a share of the long one."""
    second, third = two.steps
    count = len(two.long) - third
    events = list(two.short[:third])
    for number, length in enumerate(lengths):
        shift = number * count
        part = (length - two.share) / (1 - two.share)
        for (name, size, stream), (_, less, _) in zip(two.long[third:], two.short[third:], strict=True):
            between = rounded(int(less + (size - less) * part)) if size > FREED else size
            # what is freed but was not allocated in this step was in the one before, unless it is older than all steps
            events.append((name + shift if name >= second else name, between, stream))
    return events
