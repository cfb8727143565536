"""A timeline on which every size is left open.

What a step holds and lets go of is a sum of sizes, each so many times: of its units' curves, its groups, its borders.
In which order it does so is the same whatever they are. So a step is walked once for all sizes, with an integer for
each of them that stands for it alone: digit ``n`` of a sum counts how often size ``n`` is in it. The moments that may
be the highest for some sizes are kept, in their order, and sizes decide.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.timeline import Timeline
from memcheck.autograd.curve import High
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

    def covers(self, one: int, other: int) -> bool:
        """Whether ``one`` counts no size fewer times."""
        return (one - other + self._halves) & self._halves == self._halves

    def _rises(self, instant: str, total: int) -> bool:
        """Whether no earlier moment has as much of everything."""
        return not any(self.covers(rival.bytes, total) for rival in self._rivals.get(instant, ()))

    def _keep(self, instant: str, total: int, live: dict[str, int], operation: str, high: High | None) -> None:
        """A rival of the others; of a curve's highest point the label is a number."""
        rivals = self._rivals.setdefault(instant, [])
        rivals[:] = [rival for rival in rivals if not self.covers(total, rival.bytes)]
        label = -1 if high is None else int(high.label)
        rivals.append(Rival(instant, operation, label, total, tuple(live.items())))

    def rivals(self) -> dict[str, list[Rival]]:
        """Of each instant the moments that may be its highest, in their order."""
        return self._rivals
