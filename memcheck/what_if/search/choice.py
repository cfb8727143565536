"""Which of the remedies that were found are offered, in which order, and what each of them is for."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.finding import CHEAP, ROOMY
from memcheck.finding import HARDWARE as OTHER_HARDWARE
from memcheck.what_if.remedies.types import HARDWARE, UNCHANGED, Priced
from memcheck.what_if.search.rank import least_cost

TWICE = 1.0
"""Relative time from which on a remedy is offered only where there is none that takes less."""
FULL = 0.8
"""Utilization up to which a plan leaves room: for longer sequences, another release, a prediction's error."""


def roomy(priced: Priced) -> bool:
    """Whether a plan leaves room, by its figure and by the upper end of its interval."""
    return priced.sure and priced.estimate.utilization <= FULL


def slow(priced: Priced) -> bool:
    """Whether the work takes more than twice as long."""
    return (priced.slowdown or 0.0) > TWICE


def offered(found: Sequence[Priced]) -> list[Priced]:
    """The changes to offer by group, the cheapest first in each, and each with its role.

    A change that takes more than twice as long is left out only where a faster one asks for no more: what changes the
    results, or the hardware, is no reason to hide a slow way to run this training on these GPUs.
    """
    fast = min((p.candidate.cost for p in found if not slow(p)), default=HARDWARE + 1)
    kept = sorted((p for p in found if not slow(p) or p.candidate.cost < fast), key=least_cost)
    same = [index for index, p in enumerate(kept) if p.candidate.cost == UNCHANGED]
    other = [index for index, p in enumerate(kept) if p.candidate.cost == HARDWARE]
    room = [index for index in same if roomy(kept[index])]
    roles = dict(zip((*room[:1], *same[:1], *other[:1]), _roles(room, same, other), strict=True))
    return [p._replace(role=roles.get(index, "")) for index, p in enumerate(kept)]


def _roles(room: list[int], same: list[int], other: list[int]) -> list[str]:
    return [ROOMY] * bool(room) + [CHEAP] * bool(same) + [OTHER_HARDWARE] * bool(other)


def shown(found: Sequence[Priced], most: int) -> list[Priced]:
    """At most ``most`` of the priced changes, in their order. Those with a role are preferred."""
    places = {index for index, p in enumerate(found) if p.role}
    for index in range(len(found)):
        if len(places) >= most:
            break
        places.add(index)
    return [found[index] for index in sorted(places)[:most]]
