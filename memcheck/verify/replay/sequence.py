"""What a run asked of the allocator, in order: blocks that come and go, each with the stream that asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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


class Sequence:
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
