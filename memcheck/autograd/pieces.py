"""Long loops over alike pieces of a tensor, replayed at their ends and counted in between.

Each piece in the middle of such a loop changes the live bytes by the same amount. So the highest point lies in a piece
near one of the ends, and all pieces between them are replayed as one that counts many times (``counted_as``).
"""

from __future__ import annotations

from memcheck.autograd.tensor import Tape
from memcheck.record import Record

FIRST = 3
"""Pieces in front that are replayed one by one: the first of all casts weights for all of them."""
LAST = 4
"""Pieces at the end that are: backward starts there, whose first two gradients of a weight are added up otherwise, and
the very last piece may be shorter."""


class Pieces(Record):
    """Consecutive pieces that are alike."""

    size: int
    copies: int


def in_pieces(length: int, size: int) -> list[Pieces]:
    """``length`` cut into pieces of ``size``, of which the last may be shorter."""
    count = -(-length // size)
    middle = count - FIRST - LAST
    if middle < 2:
        return [Pieces(min(size, length - at), 1) for at in range(0, length, size)]
    front, back = [Pieces(size, 1)] * FIRST, [Pieces(size, 1)] * (LAST - 1)
    return [*front, Pieces(size, middle), *back, Pieces(length - (count - 1) * size, 1)]


class counted_as:  # noqa: N801 - reads as a function
    """A context in which what runs stands for ``copies`` alike pieces, with all that they leave allocated.

    Its moments are no candidates for the highest point.
    """

    __slots__ = ("_before", "_now", "_tape")

    def __init__(self, tape: Tape, copies: int) -> None:
        self._tape, self._before = tape, (tape.copies, tape.ignores_peaks)
        self._now = copies, copies > 1

    def __enter__(self) -> None:
        """From here on."""
        self._tape.copies, self._tape.ignores_peaks = self._now

    def __exit__(self, *_: object) -> None:
        """Restore the tape's count of copies and its silent flag from before the block."""
        self._tape.copies, self._tape.ignores_peaks = self._before
