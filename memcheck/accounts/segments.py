"""Segments of torch's caching allocator (c10/cuda/CUDACachingAllocator.cpp), and what resident blocks leave in them.

A block below 10 MiB comes out of a segment of 20: two matrices of 7 MiB leave 6 that a third does not fit into. Larger
segments are multiples of 2 MiB. Expandable segments leave nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from memcheck.autograd.tensor import round_up
from memcheck.record import Record

MIB = 2**20
SMALL_SIZE = MIB
"""``kSmallSize``: the largest block of a small pool."""
SMALL_BUFFER = 2 * MIB
"""``kSmallBuffer``: a segment of a small pool, and a page of an expandable one."""
MIN_LARGE = 10 * MIB
"""``kMinLargeAlloc``: below it a large pool takes segments of ``LARGE_BUFFER``."""
LARGE_BUFFER = 20 * MIB
"""``kLargeBuffer``; also a page of an expandable segment of a large pool."""
ROUND_LARGE = 2 * MIB
"""``kRoundLarge``: larger segments are multiples of it."""


def segment_size(size: int) -> int:
    """Return what the driver is asked for, in bytes, when a block of ``size`` bytes has no room
    (``get_allocation_size``).
    """
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    return LARGE_BUFFER if size < MIN_LARGE else round_up(size, ROUND_LARGE)


class Unfilled(Record):
    """Bytes that the segments of resident blocks leave to no other block."""

    parameters: int
    """What parameters, which come first, leave unfilled: every one of them has a new segment or a rest of one."""
    later: int
    """What gradients and states leave unfilled, if no segment were free when they come."""
    later_bytes: int
    """Gradients and states themselves."""

    def among(self, freed: int) -> int:
        """Return the bytes left unfilled if ``freed`` bytes are free when gradients and states come: larger free blocks
        are divided.
        """
        new = max(0, self.later_bytes - freed)
        return self.parameters + (self.later * new // self.later_bytes if new else 0)

    @property
    def most(self) -> int:
        """Bytes left unfilled if nothing has been freed before gradients and states come."""
        return self.parameters + self.later


def unfilled(blocks: Sequence[int]) -> int:
    """Compute the bytes of the allocator's segments that resident blocks leave unusable.

    ``blocks``: bytes of the resident blocks, in the order of allocation. Each goes to the smallest gap that holds it,
    or to a new segment. A gap that is smaller than every block is wasted.
    """
    large = [size for size in blocks if size > SMALL_SIZE]
    smallest = min(large, default=0)
    gaps: list[int] = []
    wasted = 0
    for size in large:
        at = bisect_left(gaps, size)
        if at < len(gaps):
            remainder = gaps.pop(at) - size
        else:
            remainder = LARGE_BUFFER - size if size < MIN_LARGE else -size % ROUND_LARGE
        if remainder > SMALL_SIZE:
            insort(gaps, remainder)
        else:
            wasted += remainder
    return wasted + sum(gap for gap in gaps if gap < smallest)
