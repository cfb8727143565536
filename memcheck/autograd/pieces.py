"""Long loops over equal pieces of a tensor, replayed at their ends and counted in between.

Each piece in the middle of such a loop changes the live bytes by the same amount. So the highest point lies in a piece
near one of the ends, and all pieces between them are replayed as one that counts many times (``counted_as``).
"""

from __future__ import annotations

from memcheck.autograd.tensor import Tape
from memcheck.record import Record

FIRST = 3
"""Pieces at the start that are replayed one by one: the first one casts weights for all of them."""
LAST = 4
"""Pieces at the end that are replayed one by one. Backward starts there and adds up a weight's first two gradients in
another way than later ones. The last piece may be shorter."""


class Pieces(Record):
    """Consecutive equal pieces of a tensor's dimension."""

    size: int
    """Rows per piece."""
    copies: int
    """Number of pieces."""


def in_pieces(length: int, size: int) -> list[Pieces]:
    """Cut ``length`` rows into pieces of ``size`` rows, the last of which may be shorter.

    Pieces near both ends are entries of their own, those between them one entry with a count.
    """
    count = -(-length // size)
    middle = count - FIRST - LAST
    if middle < 2:
        return [Pieces(min(size, length - at), 1) for at in range(0, length, size)]
    front, back = [Pieces(size, 1)] * FIRST, [Pieces(size, 1)] * (LAST - 1)
    return [*front, Pieces(size, middle), *back, Pieces(length - (count - 1) * size, 1)]


class counted_as:  # noqa: N801 - reads as a function
    """A context manager: each allocation in it counts ``copies`` times, as one of ``copies`` equal pieces of a tensor.

    With more than one copy its moments are not considered for the peak.
    """

    __slots__ = ("_before", "_now", "_tape")

    def __init__(self, tape: Tape, copies: int) -> None:
        self._tape, self._before = tape, (tape.copies, tape.ignores_peaks)
        self._now = copies, copies > 1

    def __enter__(self) -> None:
        """Set the tape's count of copies."""
        self._tape.copies, self._tape.ignores_peaks = self._now

    def __exit__(self, *_: object) -> None:
        """Restore the tape's count of copies and its silent flag from before the block."""
        self._tape.copies, self._tape.ignores_peaks = self._before
