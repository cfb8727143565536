"""A timeline on which every size is left open.

What a step holds and lets go of is a sum of sizes, each so many times: of its units' curves, its groups, its borders.
In which order it does so is the same whatever they are. So a step is walked once for all sizes, with an integer for
each of them that stands for it alone: digit ``n`` of a sum counts how often size ``n`` is in it. The moments that may
be the highest for some sizes are kept, in their order, and sizes decide.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.memory.ledger.curve import High
from memcheck.memory.timeline import Timeline
from memcheck.record import Record

DIGIT = 32
"""Bits for each size. The counts are far smaller, and may be negative for a while."""
HALF = 1 << DIGIT - 1


def digit(place: int) -> int:
    """What stands for size ``place``."""
    return 1 << DIGIT * place


@lru_cache(maxsize=64)
def halves(places: int) -> int:
    """``HALF`` in so many digits."""
    return sum(HALF << DIGIT * place for place in range(places))


class Rival(Record):
    """A moment that may be the highest of its instant."""

    name: str
    operation: str
    label: int
    """Which curve's label stands before the operation; -1: none does."""
    bytes: int
    """Counts of sizes, as digits."""
    live: tuple[tuple[str, int], ...]
    """By component, in the order in which they were first held, those that are empty included."""


class OpenTimeline(Timeline):
    """As its parent, of counts of sizes in place of bytes. ``places``: how many sizes there are."""

    def __init__(self, places: int) -> None:
        super().__init__()
        self._halves = halves(places)
        self._rivals: dict[str, list[Rival]] = {}

    def mark(self, instant: str, operation: str) -> None:
        """The present as a candidate for the instant's maximum."""
        if not self.muted and self._rises(instant, self.total):
            self._keep(Rival(instant, operation, -1, self.total, tuple(self.live.items())))

    def high(self, instant: str, high: High, where: str) -> None:
        """The present plus a unit's highest point, whose label is the number of one."""
        total = self.total + high.bytes
        if not self.muted and self._rises(instant, total):
            live = dict(self.live)
            for component, n_bytes in high.components:
                live[component] = live.get(component, 0) + n_bytes
            self._keep(Rival(instant, where, int(high.label), total, tuple(live.items())))

    def covers(self, one: int, other: int) -> bool:
        """Whether ``one`` counts no size fewer times."""
        return (one - other + self._halves) & self._halves == self._halves

    def _rises(self, instant: str, total: int) -> bool:
        """Whether no earlier moment has as much of everything."""
        return not any(self.covers(rival.bytes, total) for rival in self._rivals.get(instant, ()))

    def _keep(self, found: Rival) -> None:
        rivals = self._rivals.setdefault(found.name, [])
        rivals[:] = [rival for rival in rivals if not self.covers(found.bytes, rival.bytes)]
        rivals.append(found)

    def rivals(self) -> dict[str, list[Rival]]:
        """Of each instant the moments that may be its highest, in their order."""
        return self._rivals
