"""What a run asks of the allocator, in order, and what the allocator then holds.

Blocks come and go, each with the stream that asked. A run is replayed with memory to spare, and on the smallest memory
on which it survives. A step asks for the same blocks in the same order whatever its sequence length is; only their
sizes differ, and those of fused attention are linear in it. So two traces give every block's size at any length, and
the last traced step can be repeated with other lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from memcheck.record import Record
from memcheck.verify.replay.allocator import Allocator, OutOfMemory, rounded

FREED = 0
"""In place of a size: nothing refers to the block any more."""
RECORDED = -1
"""In place of a size: another stream works on the block (``Tensor.record_stream``)."""
MARKED = -2
"""In place of a size: an event was recorded, which has the name."""
AWAITED = -3
"""In place of a size: the program waited for the event of that name."""

Event = tuple[int, int, int]
"""Name of the block, its bytes or what happened to it, the stream's number."""


class AllocationSequence:
    """Takes down blocks. ``stream``: tells the stream of the present by something that can be a key."""

    __slots__ = ("_names", "_stream", "_streams", "events", "phases", "steps")

    def __init__(self, stream: Callable[[], object] = lambda: None) -> None:
        self.events: list[Event] = []
        self.steps: list[int] = []
        """How many events come before each step."""
        self.phases: list[tuple[int, str]] = []
        """Parts of steps in order, each with how many events come before it."""
        self._stream = stream
        self._streams: dict[object, int] = {stream(): 0}
        self._names: dict[int, int] = {}

    def begin_step(self) -> None:
        """What comes now is of another step."""
        self.steps.append(len(self.events))

    def enter(self, phase: str) -> None:
        """What comes now is of this part of a step."""
        self.phases.append((len(self.events), phase))

    def allocated(self, owner: int, size: int) -> None:
        """A block for an owner that has none."""
        if size:
            here = self._streams.setdefault(self._stream(), len(self._streams))
            name = len(self.events)
            self._names[owner] = name
            self.events.append((name, size, here))

    def freed(self, owner: int) -> None:
        """The owner's block, if it has one, is no longer used."""
        name = self._names.pop(owner, None)
        if name is not None:
            self.events.append((name, FREED, 0))

    def recorded(self, owner: int, stream: object) -> None:
        """Another stream works on the owner's block, if it has one."""
        name = self._names.get(owner)
        if name is not None:
            self.events.append((name, RECORDED, self._streams.setdefault(stream, len(self._streams))))

    def marked(self) -> int:
        """The name of an event that is recorded now."""
        name = len(self.events)
        self.events.append((name, MARKED, 0))
        return name

    def awaited(self, name: int) -> None:
        """The program waits for an event."""
        self.events.append((name, AWAITED, 0))


def phase_of(phases: Iterable[tuple[int, str]], number: int) -> str:
    """The part of a step that an event is of; empty before the first."""
    return next((name for first, name in reversed(tuple(phases)) if first <= number), "")


def peaks(events: list[Event]) -> tuple[int, dict[int, int]]:
    """The most bytes that live at once, on all streams together and on each."""
    live: dict[int, tuple[int, int]] = {}
    total = top = 0
    of_stream: dict[int, int] = {}
    tops: dict[int, int] = {}
    for name, size, stream in events:
        if size < FREED:
            continue
        if size:
            live[name] = size, stream
        else:
            gone, stream = live.pop(name)
            size = -gone
        total += size
        of_stream[stream] = of_stream.get(stream, 0) + size
        tops[stream] = max(tops.get(stream, 0), of_stream[stream])
        top = max(top, total)
    return top, tops


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
