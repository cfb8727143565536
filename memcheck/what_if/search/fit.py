"""The least change that makes a plan fit: one change, then two, then as many as it takes."""

from __future__ import annotations

from itertools import combinations

from memcheck.what_if.remedies.price import Pricer
from memcheck.what_if.remedies.types import HARDWARE, METHOD, UNCHANGED, CandidateChange, Priced, join
from memcheck.what_if.search.explore import explore
from memcheck.what_if.search.rank import least_change
from memcheck.what_if.search.space import singles, space_of, together

STRONGEST = 6
"""Kinds of change of which a quick search tries pairs: at most 15 pairs."""
MOST_PILED = 5
ENOUGH = 64
"""Fitting plans after which an exhaustive search for one stops."""


class Fit:
    """A search for the least change of one plan.

    ``thorough``: pairs of all changes, and every layout of the hardware where that is not enough; otherwise, for a gate
    that has to be quick, the strongest pairs and what helps most piled up.
    """

    def __init__(self, pricer: Pricer, *, thorough: bool) -> None:
        self.pricer = pricer
        self.thorough = thorough
        self.exhausted = False
        """Whether every plan of the hardware's space was judged."""
        self.tried: list[CandidateChange] = []
        """The changes that were combined."""

    def run(self) -> list[Priced]:
        """Fitting changes, the least first. Changes of the hardware or of the training come beside, not before."""
        self.tried = singles(self.pricer.context)
        priced = [p for c in self.tried if (p := self.pricer.price(c, prune=False)) is not None]
        found = [p for p in priced if self.pricer.fits(p)]
        same = [p for p in priced if p.candidate.cost == UNCHANGED]
        partners = same
        if self.pricer.context.training is None:  # what is stored and what is served are combined, too
            partners = [p for p in priced if p.candidate.cost != HARDWARE]
        if not any(p.candidate.cost == UNCHANGED and p.sure for p in found):
            found += self._combined(same)
            for other in priced:
                if other.candidate.cost in {UNCHANGED, HARDWARE} or self.pricer.fits(other):
                    continue
                pairs = [join(other.candidate, s.candidate) for s in partners if _apart(s.candidate, other.candidate)]
                best = self._cheapest(pairs)
                if best is None and self.thorough:
                    best = self._piled(partners, other)
                found += [] if best is None else [best]
        if self.thorough and not any(p.candidate.cost != HARDWARE for p in found):
            found += self._everything(METHOD)
        return self.mildest([self._relaxed(p, priced) for p in found])

    def _combined(self, same: list[Priced]) -> list[Priced]:
        """Two changes that keep the training and the hardware; else as many as it takes."""
        pool = same if self.thorough else _strongest(same, self.pricer)
        pairs = [join(a.candidate, b.candidate) for a, b in combinations(pool, 2) if _apart(a.candidate, b.candidate)]
        best = self._cheapest(pairs) or self._piled(same)
        if best is not None or not self.thorough:
            return [] if best is None else [best]
        return self._everything(UNCHANGED)[:1]

    def _everything(self, most: int) -> list[Priced]:
        """Over all layouts of the hardware."""
        found: list[Priced] = []
        space = space_of(self.pricer.context, most)
        self.tried = list(space.every)
        for priced in explore(self.pricer, space):
            found.append(priced)
            if len(found) == ENOUGH:
                break
        else:
            self.exhausted = most == METHOD
        return sorted(found, key=least_change)

    def _cheapest(self, candidates: list[CandidateChange]) -> Priced | None:
        answers = [p for c in candidates if (p := self.pricer.price(c)) is not None and self.pricer.fits(p)]
        return min(answers, key=least_change, default=None)

    def _piled(self, same: list[Priced], on: Priced | None = None) -> Priced | None:
        """Add the change that helps most, then the one that helps most after it, until the plan fits.

        A change may help only after another: recompute does nothing while the optimizer step is the peak.
        """
        need = self.pricer.pressure
        pile = on or min(same, key=need, default=None)
        for _ in range(MOST_PILED - 1):
            if pile is None:
                return None
            rest = [join(pile.candidate, p.candidate) for p in same if _apart(pile.candidate, p.candidate)]
            answers = [p for c in rest if (p := self.pricer.price(c, prune=False)) is not None]
            best = min(answers, key=need, default=None)
            if best is None or need(best) >= need(pile):
                return None
            if self.pricer.fits(best):
                return best
            pile = best
        return None

    def _relaxed(self, found: Priced, priced: list[Priced]) -> Priced:
        """Leave out every part that is not needed, and replace each by a milder change of its kind that does."""
        for part in found.candidate.parts:
            rest = [p for p in found.candidate.parts if p is not part]
            if len(rest) == len(found.candidate.parts) or not rest:
                continue
            milder = [p.candidate for p in priced if p.candidate.kind == part.kind and p.candidate is not part]
            for other in (None, *milder):
                tried = self.pricer.price(together(*rest, *([other] if other is not None else [])))
                if tried is None or not self.pricer.fits(tried) or least_change(tried) >= least_change(found):
                    continue
                found = tried
                break
        return found

    def mildest(self, found: list[Priced]) -> list[Priced]:
        """The cheapest of each combination of kinds, without those that only add changes to a cheaper one."""
        chosen: list[Priced] = []
        for priced in sorted(found, key=least_change):
            kinds = set(priced.candidate.kinds)
            if not any(set(p.candidate.kinds) <= kinds for p in chosen):
                chosen.append(priced)
        return chosen


def _apart(one: CandidateChange, other: CandidateChange) -> bool:
    """Whether two changes can be made together."""
    return not set(one.kinds) & set(other.kinds)


def _strongest(same: list[Priced], pricer: Pricer) -> list[Priced]:
    """The most effective change of every kind."""
    best: dict[str, Priced] = {}
    estimate = pricer.context.estimate
    before = pricer.full(estimate) if estimate else 0.0
    for each in sorted(same, key=pricer.pressure):
        if pricer.pressure(each) < before:
            best.setdefault(each.candidate.kind, each)
    return list(best.values())[:STRONGEST]
