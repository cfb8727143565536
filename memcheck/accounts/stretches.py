"""Which of a rank's units are walked one by one, and which as a whole."""

from __future__ import annotations

from collections.abc import Sequence

ENDS = 2
"""Layers at each end of a run that are walked one by one: the first still frees what its neighbour left."""


def stretches(times: Sequence[int]) -> list[tuple[int, int]]:
    """The units as stretches [from, to): single ones, and the middle of each long run as a whole.

    ``times``: how many units each run has.
    """
    found: list[tuple[int, int]] = []
    start = 0
    for count in times:
        end = start + count
        first, last = start + ENDS, end - ENDS
        if last - first < 2:
            first = last = end
        found += [(i, i + 1) for i in range(start, first)]
        found += [(first, last)] if first < last else []
        found += [(i, i + 1) for i in range(last, end)]
        start = end
    return found
