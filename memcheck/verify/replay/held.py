"""What the allocator holds over a run: with memory to spare, and on the smallest memory on which the run survives."""

from __future__ import annotations

from memcheck.record import Record
from memcheck.verify.replay.allocator import Allocator, OutOfMemory
from memcheck.verify.replay.sequence import Event, peaks

STEPS = 500
"""The smallest memory is found to one part of ``STEPS`` of what is live."""


class HeldMemory(Record):
    """Bytes of one run under one setting of the allocator."""

    allocated: int
    """The most that is live, each block a multiple of 512 bytes."""
    reserved: int
    """The most that is held with memory to spare: ``torch.cuda.max_memory_reserved()``."""
    needed: int
    """The smallest memory on which the run survives."""
    streams: tuple[int, ...]
    """The most that is live of each stream, the default stream first."""


def held(events: list[Event], *, expandable: bool) -> HeldMemory:
    """Replay a run."""
    allocated, tops = peaks(events)
    roomy = Allocator(expandable=expandable)
    run(roomy, events)
    low, high = allocated - 1, roomy.peak_reserved  # what is live does not suffice, or is all that is needed
    grain = max(1, allocated // STEPS)
    if survives(events, allocated, expandable=expandable):
        high = allocated
    while high - low > grain:
        middle = (low + high) // 2
        if survives(events, middle, expandable=expandable):
            high = middle
        else:
            low = middle
    return HeldMemory(
        allocated=allocated,
        reserved=roomy.peak_reserved,
        needed=high,
        streams=tuple(tops[s] for s in sorted(tops)),
    )


def run(allocator: Allocator, events: list[Event]) -> None:
    """Hand a run to an allocator.

    Raises:
        OutOfMemory: the allocator's capacity does not suffice.
    """
    for name, size, stream in events:
        if size:
            allocator.allocate(name, size, stream)
        else:
            allocator.free(name)


def survives(events: list[Event], capacity: int, *, expandable: bool) -> bool:
    """Whether the run ends on a GPU of that size."""
    try:
        run(Allocator(expandable=expandable, capacity=capacity), events)
    except OutOfMemory:
        return False
    return True
