"""The change that costs least and makes a plan fit: one change, two cheap ones, then as many as it takes."""

from __future__ import annotations

from bisect import bisect
from itertools import combinations

from memcheck.job.types import InferenceJob
from memcheck.what_if.remedies.candidates import FREE, STAGE
from memcheck.what_if.remedies.changes import HARDWARE, METHOD, UNCHANGED, CandidateChange, Priced, join
from memcheck.what_if.remedies.memory_keys import LOWER
from memcheck.what_if.remedies.price import LegalChange, Pricer
from memcheck.what_if.search.explore import drained, explore, fastest_steps
from memcheck.what_if.search.rank import cost_floor, least_cost, offered, own_keys, roomy, slow
from memcheck.what_if.search.space import NOTHING, Space, leaves_activations, singles, space_of, together

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.what_if.search.explore import Steps

OFFLOADS = frozenset({"offload", "offload-parameters"})
"""Kinds of change that move states to host memory, which takes more time than others."""
STRONGEST = 7
"""Kinds of change of which a quick search tries pairs."""


def apart(one: CandidateChange, other: CandidateChange) -> bool:
    """Whether two changes can be made together."""
    return not set(one.kinds) & set(other.kinds)


def index_of(priced: list[Priced], part: CandidateChange) -> int:
    """The place of a single change among those that are priced: what frees less comes before what frees more."""
    return next((index for index, each in enumerate(priced) if each.candidate is part), 0)


def milds(part: CandidateChange, kind: str) -> bool:
    """Whether changes of a kind may replace a part of a combination: its own, or a ZeRO stage that it sets as well."""
    return kind == part.kind or (kind == "zero" and STAGE in part.set)


def strongest(same: list[Priced], pricer: Pricer) -> list[Priced]:
    """Return the most effective change of every kind, and the fastest that has any effect where that is another one."""
    effective: dict[str, list[Priced]] = {}  # changes that free memory, by kind, the most effective first
    estimate = pricer.context.estimate
    pressure_as_written = pricer.full(estimate) if estimate else 0.0
    for change in sorted(same, key=pricer.pressure):
        if pricer.pressure(change) < pressure_as_written:
            effective.setdefault(change.candidate.kind, []).append(change)
    chosen: list[Priced] = []
    for of_kind in list(effective.values())[:STRONGEST]:
        most_effective = of_kind[0]
        fastest = min(of_kind, key=lambda change: pricer.slowdown(change.candidate, change.resolved) or 0.0)
        chosen.append(most_effective)
        if fastest != most_effective:
            chosen.append(fastest)
    return chosen


def faster(pool: list[Priced], best: float | None, pricer: Pricer) -> list[Priced]:
    """Return the changes of ``pool`` that could be in a pair with a smaller slowdown than ``best``.

    The slowdown of a pair is estimated as the sum of its changes' own; one that speeds the step up counts below 0. With
    ``best=None`` all of ``pool`` may.
    """
    if best is None or not pool:
        return pool
    slowdowns = [pricer.slowdown(change.candidate, change.resolved) or 0.0 for change in pool]
    best_partner = min(0.0, *slowdowns)
    return [change for change, slowdown in zip(pool, slowdowns, strict=True) if slowdown + best_partner < best]


MOST_PRICED = 32
"""Pairs whose memory a quick search looks at; all of them are timed, which takes less."""
MOST_OTHERS = 6
"""Pairs among which a quick search looks for one without any part of the only change that fits."""
MOST_TUNED = 256
"""Plans among which a quick search looks for better values of the keys that its answer sets."""
DEAR, MOST_TIMED = 0.25, 30_000
"""Time that a first answer may cost before a thorough search looks for the fastest of all plans, and of how many."""
MOST_PILED = 5
DEGREES = ("tensor", "context")
"""Kinds of change of which each is twice the one before."""
LOSS = "loss"
"""The kind of change of how head and loss are computed, which costs little time where it costs any."""
PAIRED, PILED, SEARCHED, RELAXED = 0.6, 0.8, 0.9, 0.97
"""Shares of a gate's steps by which its search has tried pairs, more changes, and those that ask for more than time,
and has made what it found milder."""
ENOUGH = 64
"""Fitting plans after which an exhaustive search for one stops."""


class Fit:
    """A search for the cheapest change of one plan.

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
        self.found: list[Priced] = []
        """What fits, so far."""
        self._put_off: list[tuple[int, LegalChange, bool]] = []
        """Single changes that nothing offered needs so far, each with its place among those that were tried, and
        whether it is put off because another is cheaper: otherwise it does not fit alone."""
        self._unseen: list[tuple[int, CandidateChange]] = []
        """Stronger ones of the kind of one that is put off because another is cheaper, which were not looked at."""
        self._places: list[int] = []
        """Places, among those that were tried, of the single changes that are priced."""

    def run(self) -> list[Priced]:
        """Changes that fit, the cheapest first; changes of the hardware or of the training method follow them."""
        return drained(self.steps())

    def steps(self) -> Steps[list[Priced]]:
        """Return :meth:`run` in steps: control is given back after each candidate. What fits so far is in
        :attr:`found`.
        """
        self.tried = singles(self.pricer.context)
        priced: list[Priced] = []
        with self.pricer.budget.part(by=SEARCHED):
            yield from self._search(priced)
        with self.pricer.budget.part(by=RELAXED):
            for place, found in enumerate(self.found):
                self.found[place] = yield from self._relaxed(found, priced)
        with self.pricer.budget.part():
            yield from self._tune()
        return offered(self.mildest(self.found))

    def _search(self, priced: list[Priced]) -> Steps[None]:
        """Search in phases: single changes, pairs, many changes, then changes of the method or the hardware.

        Each phase runs only if the answers so far are not good enough. ``priced`` collects the single changes that were
        estimated.
        """
        yield from self._singles(priced)
        yield from self._price_the_fast(priced)
        same = [change for change in priced if change.candidate.cost == UNCHANGED]
        with self.pricer.budget.part(by=PAIRED):
            yield from self._pairs(same)
        if not self._settled():
            with self.pricer.budget.part(by=PILED):
                yield from self._more(same)
        fits = [change for change in self.found if change.candidate.cost == UNCHANGED]
        if fits and (not self._settled() or not OFFLOADS.isdisjoint(fits[0].candidate.kinds)):  # but slow
            self._add((yield from self._on_free(same)))
        serves = self.pricer.context.training is None
        has_sure_answer = any(change.candidate.cost == UNCHANGED and change.sure for change in self.found)
        if serves or not has_sure_answer:
            yield from self._other_training(priced, same)
        if self.thorough and not any(change.candidate.cost != HARDWARE for change in self.found):
            yield from self._everything(METHOD)

    def _add(self, answer: Priced | None) -> None:
        """Add a plan to what fits, if there is one."""
        if answer is not None:
            self.found.append(answer)

    def _singles(self, priced: list[Priced]) -> Steps[None]:
        """Price single changes in their order, and put off those that cannot be an answer by themselves.

        A change that costs more than one that fits is put off, and the stronger ones of its kind are not looked at.
        """
        too_dear: set[tuple[str, ...]] = set()  # kinds of change, with the keys that they set
        for place, candidate in enumerate(self.tried):
            kind_and_keys = (candidate.kind, *candidate.set)
            if kind_and_keys in too_dear:
                self._unseen.append((place, candidate))
                continue
            legal = self.pricer.look(candidate)
            if legal is None:
                continue
            dearer = self._is_dearer(legal)
            if dearer:
                too_dear.add(kind_and_keys)
            if dearer or self._is_no_answer(legal):
                self.pricer.put_off(legal)
                self._put_off.append((place, legal, dearer))
                continue
            change = yield from self._price_single(place, legal, priced)
            if change is not None and self.pricer.fits(change):
                self.found.append(change)

    def _other_training(self, priced: list[Priced], same: list[Priced]) -> Steps[None]:
        """Combine each change of the training method with one of ``same``, which keep it, or with several.

        If nothing fits, everything but other hardware is piled up, what frees most first.
        """
        yield from self._price_the_others(priced)
        same_hardware = [change for change in priced if change.candidate.cost != HARDWARE]
        serves = self.pricer.context.training is None
        partners = same_hardware if serves else same  # what is stored and what is served are combined, too
        for other in priced:
            if other.candidate.cost in {UNCHANGED, HARDWARE} or self.pricer.fits(other):
                continue
            pairs = [
                join(other.candidate, partner.candidate)
                for partner in partners
                if apart(partner.candidate, other.candidate)
            ]
            best = yield from self._cheapest(pairs)
            if best is None and self.thorough:
                best = yield from self._piled(partners, other)
            self._add(best)
        if not self.found and priced:
            self._add((yield from self._piled([p for p in priced if p.candidate.cost != HARDWARE])))

    def _is_dearer(self, legal: LegalChange) -> bool:
        """Say whether a change costs no less than one that fits and sets the same keys.

        Such a change would not be offered, as long as the other one leaves room where a change that leaves room may be
        offered as well. A thorough search counts every plan that it looked at.
        """
        kind, cost = legal.candidate.kind, legal.candidate.cost
        if self.thorough:
            return False
        keys = own_keys(legal.changes)
        like = [p for p in self.found if p.candidate.kind == kind and own_keys(p.changes) == keys]
        if cost == UNCHANGED:
            like = [p for p in like if roomy(p) and not slow(p)]
        if not like:
            return False
        job, slowdown = legal.resolved.job, self.pricer.slowdown(legal.candidate, legal.resolved)
        if cost == HARDWARE:  # of two GPUs that are worth the same the smaller one
            return any(least_cost(other)[:-1] <= cost_floor(legal, slowdown) for other in like)
        floor = cost_floor(legal, slowdown)
        if cost != UNCHANGED:
            floor = (*floor, legal.shared.least_host_bytes(job))
        return any(least_cost(other) <= floor for other in like)

    def _is_no_answer(self, legal: LegalChange) -> bool:
        """Say whether a change of the resident states leaves the plan too large, while its activations stay as they
        are.

        It may still help together with another change.
        """
        context, job = self.pricer.context, legal.resolved.job
        if self.thorough or context.estimate is None or context.training is None or isinstance(job, InferenceJob):
            return False
        alike = leaves_activations(legal.candidate.kind, context.training, job)
        return alike and self.pricer.is_above(legal.resolved, context.estimate.components_bytes.get("activations", 0))

    def _price_single(self, place: int, legal: LegalChange, priced: list[Priced]) -> Steps[Priced | None]:
        """Return a single change at its place among the others."""
        one = self.pricer.price_legal(legal, prune=False)
        yield
        if one is not None:
            at = bisect(self._places, place)
            self._places.insert(at, place)
            priced.insert(at, one)
        return one

    def _fastest(self) -> float | None:
        """Relative time of the fastest that leaves room, and keeps the training and the hardware."""
        return min((p.slowdown or 0.0 for p in self.found if roomy(p) and p.candidate.cost == UNCHANGED), default=None)

    def _price_the_fast(self, priced: list[Priced]) -> Steps[None]:
        """Price those changes that were put off as they do not fit alone, and that may be faster in a pair."""
        best = self._fastest()
        for put_off in reversed(self._put_off.copy()):
            place, legal, dearer = put_off
            if dearer or legal.candidate.cost != UNCHANGED:
                continue
            if best is None or (self.pricer.slowdown(legal.candidate, legal.resolved) or 0.0) < best:
                self._put_off.remove(put_off)
                yield from self._price_single(place, legal, priced)

    def _price_the_others(self, priced: list[Priced]) -> Steps[None]:
        """Price all changes that were put off, the later ones first, each at its place in ``priced``."""
        remaining = self._put_off.copy()
        for place, candidate in self._unseen:
            legal = self.pricer.look(candidate)
            if legal is not None:
                remaining.append((place, legal, True))
        for place, legal, _ in sorted(remaining, key=_place, reverse=True):
            yield from self._price_single(place, legal, priced)
        self._put_off.clear()
        self._unseen.clear()

    def _settled(self) -> bool:
        """Whether anything that keeps the training and the hardware fits and is no slower than twice."""
        return any(p.candidate.cost == UNCHANGED and not slow(p) for p in self.found)

    def _pairs(self, same: list[Priced]) -> Steps[None]:
        """Two changes that keep the training and the hardware, the fastest pairs first.

        How long a step takes is told sooner than how much memory it needs, so that pairs are priced from the fastest on
        until one leaves room. One alone that fits is no reason to do without: two cheap ones may cost less.
        """
        best = self._fastest()
        pool = same if self.thorough else faster(strongest(same, self.pricer), best, self.pricer)
        pairs = self._timed_pairs(pool)
        for count, (slowdown, pair) in enumerate(pairs):
            too_slow = best is not None and slowdown >= best
            if too_slow or (count >= MOST_PRICED and not self.thorough):
                break
            priced = self.pricer.price_legal(pair)
            yield
            if priced is not None and self.pricer.fits(priced):
                self.found.append(priced)
                if roomy(priced):
                    break
        yield from self._another([pair for _, pair in pairs])

    def _timed_pairs(self, pool: list[Priced]) -> list[tuple[float, LegalChange]]:
        """List the pairs of changes that can be made together and break no rule, each after its slowdown.

        The fastest pairs come first, of equally fast ones those that set the fewest keys.
        """
        legal_pairs = []
        for one, other in combinations(pool, 2):
            if apart(one.candidate, other.candidate):
                legal = self.pricer.look(join(one.candidate, other.candidate))
                if legal is not None:
                    legal_pairs.append(legal)
        timed = [(self.pricer.slowdown(pair.candidate, pair.resolved) or 0.0, pair) for pair in legal_pairs]
        return sorted(timed, key=lambda entry: (entry[0], len(entry[1].candidate.set)))

    def _another(self, pairs: list[LegalChange]) -> Steps[None]:
        """Add a pair without anything of the only change that fits, if one of the fastest such pairs fits.

        Not everybody can make the first change: a reference can be scored before the training only where its data are
        at hand.
        """
        fit = [change for change in self.found if change.candidate.cost == UNCHANGED and not slow(change)]
        if self.thorough or not fit:
            return
        first_kinds = set(fit[0].candidate.kinds)
        if any(first_kinds.isdisjoint(change.candidate.kinds) for change in fit):  # there is another answer
            return
        kinds = {kind for change in fit for kind in change.candidate.kinds}
        others = [pair for pair in pairs if kinds.isdisjoint(pair.candidate.kinds)]
        for pair in others[:MOST_OTHERS]:
            priced = self.pricer.price_legal(pair)
            yield
            if priced is not None and self.pricer.fits(priced):
                self.found.append(priced)
                return

    def _more(self, same: list[Priced]) -> Steps[None]:
        """Combine changes until the plan fits. If none fits, a thorough search tries every layout of the GPUs."""
        best = yield from self._piled(same)
        self._add(best)
        if best is not None and not OFFLOADS.isdisjoint(best.candidate.kinds):  # what frees most takes most time
            self._add((yield from self._piled([p for p in same if p.candidate.kind not in OFFLOADS])))
        if self.thorough and not self._settled():
            yield from self._everything(UNCHANGED)

    def _on_free(self, same: list[Priced]) -> Steps[Priced | None]:
        """Pile changes up on all that cost no time: one that does little alone may spare a slow one."""
        free: dict[str, CandidateChange] = {}
        for each in same:
            if each.candidate.kind in (*FREE, *LOWER, LOSS):
                free.setdefault(each.candidate.kind, each.candidate)
        on = self.pricer.price(together(*free.values()), prune=False)
        if on is None or self.pricer.fits(on):
            return on
        return (yield from self._piled([p for p in same if p.candidate.kind not in free], on))

    def _everything(self, most: int) -> Steps[None]:
        """Over all layouts of the hardware."""
        space = space_of(self.pricer.context, most)
        self.tried = list(space.every)
        some: list[Priced] = []
        try:
            for priced in explore(self.pricer, space):
                some.append(priced)
                yield
                if len(some) == ENOUGH:
                    break
            else:
                self.exhausted = most == METHOD
        finally:  # what was found before the time was up counts
            self.found += sorted(some, key=least_cost)[: 1 if most == UNCHANGED else None]

    def _tune(self) -> Steps[None]:
        """Better values of the keys that the first answer sets: of the plans that set no others, the fastest.

        Where even that is dear, whatever is fastest. Of a degree that is the first answer alone all larger ones were
        tried, and smaller ones than the plan's do not fit.
        """
        first = next(iter(offered(self.mildest(self.found))), None)
        pricer = self.pricer
        if first is None or first.candidate.cost != UNCHANGED or pricer.clock.written is None or not first.changes:
            return
        if self.thorough and (first.slowdown or 0.0) > DEAR:
            whole = space_of(pricer.context, UNCHANGED, faster=True)
            if whole.size <= MOST_TIMED:
                self.found += yield from fastest_steps(pricer, whole, 2)
                return
        if not self.thorough and first.candidate.kind in DEGREES:
            return
        free = [part for part in first.candidate.parts or (first.candidate,) if part.kind in FREE]
        space = space_of(pricer.context, UNCHANGED, faster=True, keys=first.changes)
        if free:  # the space has all free changes or none
            space = space._replace(steps=(*(together(*free, step) for step in space.steps), *space.steps))
        if not self.thorough and space.size > MOST_TUNED:
            space = Space((NOTHING, first.candidate), space.states, space.steps)
        pricer.sets_only(first.changes)
        try:
            self.found += yield from fastest_steps(pricer, space, 1)
        finally:
            pricer.sets_only(None)

    def _cheapest(self, candidates: list[CandidateChange]) -> Steps[Priced | None]:
        """Return the cheapest change that fits, of those that ask for more than time.

        A gate prices them from the least cost on that they can have, which is told sooner than how much memory they
        need, until none that is left can be cheaper.
        """
        pricer = self.pricer
        if self.thorough:  # counts every plan that it looked at
            answers = []
            for candidate in candidates:
                priced = pricer.price(candidate)
                yield
                answers += [priced] if priced is not None and pricer.fits(priced) else []
            return min(answers, key=least_cost, default=None)
        legal = [(each, i) for i, c in enumerate(candidates) if (each := pricer.look(c)) is not None]
        floors = [(cost_floor(each, pricer.slowdown(each.candidate, each.resolved)), i, each) for each, i in legal]
        best: tuple[tuple[object, ...], int, Priced] | None = None
        with pricer.budget.part():
            for floor, index, each in sorted(floors, key=lambda one: one[:2]):
                if best is not None and floor > best[0][: len(floor)]:
                    break
                priced = pricer.price_legal(each)
                yield
                if priced is not None and pricer.fits(priced):
                    cost = least_cost(priced)
                    if best is None or (cost, index) < best[:2]:
                        best = cost, index, priced
        return None if best is None else best[2]

    def _piled(self, same: list[Priced], on: Priced | None = None) -> Steps[Priced | None]:
        """Add the change that helps most, then the one that helps most after it, until the plan fits.

        A change may help only after another: recompute does nothing while the optimizer step is the peak.
        """
        need = self.pricer.pressure
        pile = on or min(same, key=need, default=None)
        for _ in range(MOST_PILED - 1):
            if pile is None:
                return None
            rest = [join(pile.candidate, p.candidate) for p in same if apart(pile.candidate, p.candidate)]
            best = yield from self._emptiest(rest)
            if best is None or need(best) >= need(pile):
                return None
            if self.pricer.fits(best):
                return best
            pile = best
        return None

    def emptiest(self, candidates: list[CandidateChange]) -> Priced | None:
        """The change under which the fullest memory is least full; None where all are illegal."""
        return drained(self._emptiest(candidates))

    def _emptiest(self, candidates: list[CandidateChange]) -> Steps[Priced | None]:
        """Return the change under which the fullest memory is least full. One is not priced whose states alone need
        more than the limit, and more than another change does in all.
        """
        pricer = self.pricer
        bounds = [(bound, i, c) for i, c in enumerate(candidates) if (bound := pricer.least(c)) is not None]
        best: tuple[float, int, Priced] | None = None
        for position, (bound, index, candidate) in enumerate(sorted(bounds, key=lambda each: each[:2])):
            if best is not None and bound > max(best[0], pricer.limit):
                pricer.counts["below_floor"] += len(bounds) - position
                break
            priced = pricer.price(candidate, prune=False)
            yield
            if priced is not None and (best is None or (pricer.pressure(priced), index) < best[:2]):
                best = (pricer.pressure(priced), index, priced)
        return None if best is None else best[2]

    def _relaxed(self, found: Priced, priced: list[Priced]) -> Steps[Priced]:
        """Leave out every part that is not needed, and replace each by a milder change of its kind that does."""
        for part in found.candidate.parts:
            rest = [p for p in found.candidate.parts if p is not part]
            if len(rest) == len(found.candidate.parts) or not rest:
                continue
            waiting = [*(legal.candidate for _, legal, _ in self._put_off), *(each for _, each in self._unseen)]
            if any(each.kind == part.kind for each in waiting):
                yield from self._price_the_others(priced)
            milder = [p.candidate for p in priced if milds(part, p.candidate.kind) and p.candidate is not part]
            before = [p.candidate for p in priced[: index_of(priced, part)]]
            for other in (None, *milder):
                tried = self.pricer.price(together(*rest, *([other] if other is not None else [])))
                yield
                if tried is None or not self.pricer.fits(tried) or least_cost(tried) > least_cost(found):
                    continue
                if least_cost(tried) < least_cost(found) or other is None or other in before:
                    found = tried
                    break
        return found

    def mildest(self, found: list[Priced]) -> list[Priced]:
        """Return the cheapest of each combination of kinds and of keys, without those that only add changes to a
        cheaper one.

        The cheapest that leaves room is among them all the same.
        """
        chosen: list[Priced] = []
        room = False
        for priced in sorted(found, key=least_cost):
            kinds, keys = set(priced.candidate.kinds), own_keys(priced.changes)
            adds = not any(set(p.candidate.kinds) <= kinds or own_keys(p.changes) <= keys for p in chosen)
            first = not room and priced.candidate.cost == UNCHANGED and roomy(priced)
            if adds or first:
                chosen.append(priced)
            room = room or first
        return chosen


def _place(put_off: tuple[int, LegalChange, bool]) -> int:
    return put_off[0]
