"""A found plan without the changes that gain nothing in it."""

from __future__ import annotations

from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.remedies.types import UNCHANGED, Priced
from memcheck.what_if.search.space import together


def lean(pricer: Pricer, found: Priced) -> Priced:
    """The plan without each change that saves neither memory nor time nor host memory once the others are made.

    A search makes all changes that cost no time together, and one of them may take another's effect away.
    """
    with pricer.budget.part():
        for part in found.candidate.parts:
            if part.cost != UNCHANGED or len(found.candidate.parts) == 1:
                continue
            rest = together(*(each for each in found.candidate.parts if each is not part))
            without = pricer.price(rest)
            if without is not None and pricer.fits(without) and _no_worse(without, found):
                found = without._replace(role=found.role)
    return found


def _no_worse(one: Priced, other: Priced) -> bool:
    """Whether a plan needs no more memory and no more time than another, and sets fewer keys."""
    mine, theirs = one.estimate, other.estimate
    return (
        mine.needed_bytes <= theirs.needed_bytes
        and mine.needed_interval_bytes[1] <= theirs.needed_interval_bytes[1]
        and mine.host_bytes_per_node <= theirs.host_bytes_per_node
        and (one.slowdown or 0.0) <= (other.slowdown or 0.0)
        and len(one.changes) <= len(other.changes)
    )
