"""Walks a space: every plan of it is judged, or belongs to a branch whose states alone do not fit."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.record import Record
from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.remedies.types import NUMERIC_ORDER, CandidateChange, Priced
from memcheck.what_if.search.rank import ParetoFilter, Split, changed_keys, fastest, split_of
from memcheck.what_if.search.space import Space, together


def explore(pricer: Pricer, space: Space) -> Iterator[Priced]:
    """The plans of the space that fit, in its order. What became of the others is in the pricer's tally."""
    for candidate in possible(pricer, space):
        priced = pricer.price(candidate)
        if priced is not None and pricer.fits(priced):
            yield priced


class Timed(Record):
    """A legal plan that was not priced; sorted by its first three values."""

    slower: float
    numerics: int
    changes: int
    candidate: CandidateChange
    split: Split


def fastest_first(pricer: Pricer, space: Space, enough: int) -> list[Priced]:
    """The fastest plan that fits of each of the ``enough`` fastest splits, without those that change more than a faster
    one. Only where there are fewer splits come more plans of each.

    How long a step takes is told sooner than how much memory it needs: all legal plans are timed, and priced from the
    fastest on until enough of them fit.
    """
    timed: list[Timed] = []
    for candidate in possible(pricer, space):
        changes = pricer.complete(candidate)
        resolved = None if changes is None else pricer.resolved(changes)
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
    timed.sort(key=lambda each: each[:3])
    found: list[Priced] = []
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
        if (priced := _fitting(pricer, each)) is not None and kept.adds(priced):
            found.append(priced)
            have.add(each.split)
    for position, each in enumerate(later):
        if len(found) == enough:
            pricer.counts["slower"] += len(later) - position
            break
        if (priced := _fitting(pricer, each)) is not None and kept.adds(priced):
            found.append(priced)
    return sorted(found, key=fastest)


def _fitting(pricer: Pricer, each: Timed) -> Priced | None:
    priced = pricer.price(each.candidate)
    return priced if priced is not None and pricer.fits(priced) else None


def possible(pricer: Pricer, space: Space) -> Iterator[CandidateChange]:
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
