"""What the allocator holds over a run: with memory to spare, and on the smallest memory on which the run survives."""

from __future__ import annotations

from memcheck.record import Record
from memcheck.verify.replay.allocator import Allocator, OutOfMemory
from memcheck.verify.replay.sequence import FREED, MARKED, RECORDED, Event, peaks

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
    fails_at: int
    """Number of the event at which the run fails on a little less than is needed."""


def held(events: list[Event], *, expandable: bool) -> HeldMemory:
    """Replay a run."""
    allocated, tops = peaks(events)
    roomy = Allocator(expandable=expandable)
    run(roomy, events)
    low, high = allocated - 1, roomy.peak_reserved  # what is live does not suffice, or is all that is needed
    grain = max(1, allocated // STEPS)
    fails_at, middle = failure(events, low, expandable=expandable), allocated
    while True:
        found = failure(events, middle, expandable=expandable)
        if found is None:
            high = middle
        else:
            low, fails_at = middle, found
        if high - low <= grain:
            break
        middle = (low + high) // 2
    return HeldMemory(
        allocated=allocated,
        reserved=roomy.peak_reserved,
        needed=high,
        streams=tuple(tops[s] for s in sorted(tops)),
        fails_at=fails_at or 0,
    )


def run(allocator: Allocator, events: list[Event]) -> int | None:
    """Hand a run to an allocator: the number of the event for which its capacity does not suffice, if there is one."""
    for number, (name, size, stream) in enumerate(events):
        if size <= FREED:
            _followed(allocator, name, size, stream)
            continue
        try:
            allocator.allocate(name, size, stream)
        except OutOfMemory:
            return number
    return None


def _followed(allocator: Allocator, name: int, what: int, stream: int) -> None:
    """Hand on what happened to a block, or to an event."""
    if what == FREED:
        allocator.free(name)
    elif what == RECORDED:
        allocator.record_stream(name, stream)
    elif what == MARKED:
        allocator.record_event(name)
    else:
        allocator.synchronize(name)


def failure(events: list[Event], capacity: int, *, expandable: bool) -> int | None:
    """Number of the event at which the run fails on a GPU of that size; none: it ends."""
    return run(Allocator(expandable=expandable, capacity=capacity), events)
