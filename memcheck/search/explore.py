"""Walks a space: every plan of it is judged, or belongs to a branch whose states alone do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.remedies.price import Pricer
from memcheck.remedies.types import NUMERIC_ORDER, Candidate, Priced
from memcheck.search.rank import Kept, changed_keys
from memcheck.search.space import Space, together


def explore(pricer: Pricer, space: Space) -> Iterator[Priced]:
    """The plans of the space that fit, in its order. What became of the others is in the pricer's tally."""
    for candidate in possible(pricer, space):
        priced = pricer.price(candidate)
        if priced is not None and pricer.fits(priced):
            yield priced


def fastest_first(pricer: Pricer, space: Space, enough: int) -> list[Priced]:
    """The ``enough`` fastest plans of the space that fit, without those that change more than a faster one.

    How long a step takes is told sooner than how much memory it needs: all legal plans are timed, and priced from the
    fastest on until enough of them fit.
    """
    timed: list[tuple[float, int, int, Candidate]] = []
    for candidate in possible(pricer, space):
        changes = pricer.complete(candidate)
        resolved = None if changes is None else pricer.resolved(changes)
        if changes is None or resolved is None:
            pricer.counts["illegal"] += 1
            continue
        slower = pricer.slowdown(candidate, resolved) or 0.0
        timed.append((round(slower, 4), NUMERIC_ORDER.index(candidate.numerics), changed_keys(changes), candidate))
    timed.sort(key=lambda each: each[:3])
    found: list[Priced] = []
    kept = Kept()
    for position, (*_, candidate) in enumerate(timed):
        if len(found) == enough:
            pricer.counts["slower"] += len(timed) - position
            break
        priced = pricer.price(candidate)
        if priced is not None and pricer.fits(priced) and kept.adds(priced):
            found.append(priced)
    return found


def possible(pricer: Pricer, space: Space) -> Iterator[Candidate]:
    """The plans of the space, but for branches whose states alone exceed the limit.

    The changes of a step do not move the states that rest between steps, so that a layout whose states exceed the
    limit is left out with all of them.
    """
    for layout in space.layouts:
        if pricer.touches(layout):
            pricer.counts["illegal"] += len(space.states) * len(space.steps)
            continue
        for states in space.states:
            base = together(layout, states)
            resolved = pricer.legal(base)
            if resolved is not None and pricer.below_floor(resolved):
                pricer.counts["below_floor"] += len(space.steps)
                continue
            for steps in space.steps:
                yield together(base, steps)
