"""Layers that are alike are priced once and walked at the ends of their run."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.memory.units import Unit

ENDS = 2
"""Layers at each end of a run that are walked one by one: the first still frees what its neighbour left behind."""


def distinct(units: Sequence[Unit]) -> list[tuple[Unit, int]]:
    """One unit for all that share their tensors, and how many do."""
    counts: dict[int, int] = {}
    first: dict[int, Unit] = {}
    for unit in units:
        key = id(unit.tensors)
        if key in counts:
            counts[key] += 1
        else:
            counts[key], first[key] = 1, unit
    return [(first[key], count) for key, count in counts.items()]


def stretches(units: Sequence[Unit]) -> list[tuple[int, int]]:
    """The units as stretches [from, to): single ones, and the middle of each long run of equal ones as a whole.

    Within a run every layer changes the live bytes by the same amount, so that the highest moment is in a layer near
    one of the run's ends; the layers between them count by what they change.
    """
    found: list[tuple[int, int]] = []
    start = 0
    for end in range(1, len(units) + 1):
        if end < len(units) and _alike(units[start], units[end]):
            continue
        first, last = start + ENDS, end - ENDS
        if last - first < 2:
            first = last = end
        found += [(i, i + 1) for i in range(start, first)]
        found += [(first, last)] if first < last else []
        found += [(i, i + 1) for i in range(last, end)]
        start = end
    return found


def _alike(one: Unit, other: Unit) -> bool:
    return one.tensors is other.tensors and one.fresh is other.fresh and one.again is other.again
