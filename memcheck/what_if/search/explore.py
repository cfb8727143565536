"""Walks a space: every plan of it is judged, or belongs to a branch whose states alone do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.record import Record
from memcheck.what_if.remedies.budget import BudgetSpentError
from memcheck.what_if.remedies.changes import NUMERIC_ORDER, CandidateChange, Priced
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.search.rank import ParetoFilter, Split, changed_keys, fastest, split_of
from memcheck.what_if.search.space import Space, together

TIMING = 0.6
"""The share of a budget for telling how long steps take; what is left is for pricing their memory."""


TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import TypeVar

    Result = TypeVar("Result")
    Steps = Generator[None, None, Result]
    """A search that gives control back after each candidate, and returns its result."""


def drained(steps: Steps[Result]) -> Result:
    """Return the result of a search, without a pause."""
    found: list[Result] = []

    def kept() -> Iterator[None]:
        found.append((yield from steps))

    for _ in kept():
        pass
    return found[0]


def explore(pricer: Pricer, space: Space) -> Iterator[Priced]:
    """Yield the plans of the space that fit, in its order. What became of the others is in the pricer's tally."""
    looked = pricer.tally.considered
    try:
        for candidate in possible(pricer, space):
            priced = pricer.price(candidate)
            if priced is not None and pricer.fits(priced):
                yield priced
    except BudgetSpentError:
        pricer.budget.unsearched += max(0, space.size - (pricer.tally.considered - looked))
        raise


class Timed(Record):
    """A legal plan that was not priced; sorted by its first three values."""

    slower: float
    numerics: int
    changes: int
    candidate: CandidateChange
    split: Split


def fastest_first(pricer: Pricer, space: Space, enough: int) -> list[Priced]:
    """The fastest plans of a space that fit, without a pause; see :func:`fastest_steps`."""
    return drained(fastest_steps(pricer, space, enough))


def fastest_steps(pricer: Pricer, space: Space, enough: int) -> Steps[list[Priced]]:
    """Return the fastest plan that fits of each of the ``enough`` fastest splits, without those that change more than a
    faster one. Only where there are fewer splits come more plans of each.

    How long a step takes is told sooner than how much memory it needs: all legal plans are timed, and priced from the
    fastest on until enough of them fit.
    """
    timed: list[Timed] = []
    looked = pricer.tally.considered
    found: list[Priced] = []
    with pricer.budget.part(TIMING):
        yield from _time(pricer, space, timed)
    timed.sort(key=lambda each: each[:3])
    with pricer.budget.part():
        yield from _price(pricer, timed, enough, found)
    if pricer.budget.spent:
        pricer.budget.unsearched += max(0, space.size - (pricer.tally.considered - looked))
    return sorted(found, key=fastest)


def _time(pricer: Pricer, space: Space, timed: list[Timed]) -> Steps[None]:
    """Put every legal plan, unpriced, into ``timed``."""
    for candidate in possible(pricer, space):
        pricer.budget.check()  # of most candidates of a large cluster nothing follows that would ask it
        changes = pricer.complete(candidate)
        resolved = None if changes is None else pricer.resolved(changes)
        yield
        if changes is None or resolved is None:
            pricer.counts["illegal"] += 1
            continue
        slower = pricer.slowdown(candidate, resolved) or 0.0
        numerics = NUMERIC_ORDER.index(candidate.numerics)
        split = split_of(resolved.job.layout)
        timed.append(
            Timed(
                slower=round(slower, 4),
                numerics=numerics,
                changes=changed_keys(changes),
                candidate=candidate,
                split=split,
            )
        )


def _price(pricer: Pricer, timed: list[Timed], enough: int, found: list[Priced]) -> Steps[None]:
    """Price plans from the fastest on, and put those that are shown into ``found``."""
    kept = ParetoFilter()
    have: set[Split] = set()
    later: list[Timed] = []
    for position, each in enumerate(timed):
        if len(found) == enough:
            later += timed[position:]
            break
        if each.split in have:
            later.append(each)
            continue
        priced = _fitting(pricer, each)
        yield
        if priced is not None and kept.adds(priced):
            found.append(priced)
            have.add(each.split)
    for position, each in enumerate(later):
        if len(found) == enough:
            pricer.counts["slower"] += len(later) - position
            break
        priced = _fitting(pricer, each)
        yield
        if priced is not None and kept.adds(priced):
            found.append(priced)


def _fitting(pricer: Pricer, each: Timed) -> Priced | None:
    priced = pricer.price(each.candidate)
    return priced if priced is not None and pricer.fits(priced) else None


def possible(pricer: Pricer, space: Space) -> Iterator[CandidateChange]:
    """Yield the plans of the space, but for branches whose states alone exceed the limit.

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
