"""Walks of steps whose sizes are open, kept by what they depend on, and what given sizes make of them."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from operator import add, itemgetter, mul

from memcheck.accounts.moves import Moment
from memcheck.accounts.unit import Unit
from memcheck.autograd.curve import Curve
from memcheck.memory.conduct import NO_GROUPS, Beyond, Conduct, Groups
from memcheck.memory.open_sizes import (
    beyond_numbers,
    group_numbers,
    groups_of,
    open_beyond,
    open_curve,
    parts_of,
    sizes_of,
    taken,
)
from memcheck.memory.open_timeline import DIGIT, HALF, OpenTimeline, Rival, halves
from memcheck.memory.runs import Run
from memcheck.memory.step import Step
from memcheck.record import Record

LAYER = re.compile(r"\blayer (\d+)")
NAMES = {"embedding": "embedding", "head": "head and loss"}


class Outline(Record):
    """A run without its sizes."""

    kind: str
    reduced: str
    times: int
    layer: int
    """Number of the first, counted from the rank's first."""
    fresh: int
    """Number of its curve's form."""
    again: int
    """-1: the same curve."""
    of: int
    """The run whose sizes these are."""


Counts = list[tuple[int, int]]
"""Places of sizes, each with how often it counts."""


class Sum:
    """Some sizes, each so many times."""

    __slots__ = ("_counts", "_pick")

    def __init__(self, counts: Counts) -> None:
        places = [place for place, _ in counts]
        self._pick = picking(places)
        self._counts = tuple([count for _, count in counts])

    def of(self, sizes: Sequence[int]) -> int:
        """Its bytes."""
        return sum(map(mul, self._counts, self._pick(sizes)))


def picking(places: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """What is at these places, as a sequence however few they are."""
    if len(places) < 2:
        return lambda row: [row[place] for place in places]
    return itemgetter(*places)


class Sums:
    """Many sums, each by what it has more and less than the one before."""

    __slots__ = ("_counts", "_ends", "_pick")

    def __init__(self, changes: Sequence[Counts]) -> None:
        every = [change for one in changes for change in one]
        self._pick = picking([place for place, _ in every])
        self._counts = tuple([count for _, count in every])
        self._ends = picking(list(accumulate(map(len, changes))))

    def of(self, sizes: Sequence[int]) -> Sequence[int]:
        """The bytes of each."""
        return self._ends(list(accumulate(map(mul, self._counts, self._pick(sizes)), initial=0)))


class Candidate:
    """A moment that may be the highest of its instant. ``counted``: of a sum of digits, each place and its count."""

    __slots__ = ("_counted", "_live", "_parts", "label", "operation")

    def __init__(self, rival: Rival, counted: Callable[[int], Counts]) -> None:
        self.operation, self.label = rival.operation, rival.label
        self._live, self._counted = rival.live, counted
        self._parts: tuple[tuple[str, Sum], ...] = ()

    def components(self) -> tuple[tuple[str, Sum], ...]:
        """What lives; made for those that are the highest of some step."""
        if not self._parts:
            self._parts = tuple([(component, Sum(self._counted(n))) for component, n in self._live])
        return self._parts


class Walked:
    """A walk for all sizes: its candidates, those of an instant in their order, one instant behind the other."""

    __slots__ = ("_grouped", "_groups", "candidates", "instants", "units")

    def __init__(
        self, instants: list[tuple[str, int, int]], candidates: list[Candidate], units: Sums, groups: Sums
    ) -> None:
        self.instants = instants
        """Each with its candidates, [from, to)."""
        self.candidates = candidates
        self.units = units
        """What each has of units and borders."""
        self._groups = groups
        self._grouped: dict[tuple[int, ...], Sequence[int]] = {}

    def groups(self, sizes: tuple[int, ...]) -> Sequence[int]:
        """What each has of groups. The same groups come with many units."""
        found = self._grouped.get(sizes)
        if found is None:
            if len(self._grouped) >= REMEMBERED:
                self._grouped.clear()
            found = self._grouped[sizes] = self._groups.of(sizes)
        return found


REMEMBERED = 256


class OpenGroups(Record):
    """The sizes of a rank's groups, run by run."""

    forms: tuple[Hashable, ...]
    numbers: tuple[int, ...]


NO_SIZES = OpenGroups((), ())


class Labels(Record):
    """What the sizes of a step belong to, in words."""

    layer: int
    """Number of the rank's first."""
    highs: list[str]
    """Of its units' highest points."""

    def of(self, moment: Candidate) -> str:
        """The operation at a moment, with the layer's own number."""
        text = LAYER.sub(lambda found: f"layer {int(found[1]) + self.layer}", moment.operation)
        return text if moment.label < 0 else f"{self.highs[moment.label]} in {text}"


class OpenMotion:
    """A walk with its sizes: the highest moment of each instant."""

    __slots__ = ("_chosen", "_labels", "_sizes", "tops")

    def __init__(
        self, walked: Walked, totals: Sequence[int], sizes: tuple[tuple[int, ...], ...], labels: Labels
    ) -> None:
        self._sizes, self._labels = sizes, labels
        self._chosen: list[Candidate] = []
        tops = []
        for name, first, end in walked.instants:
            some = totals[first:end]
            best = max(some)
            self._chosen.append(walked.candidates[first + some.index(best)])
            tops.append((name, best))
        self.tops = tuple(tops)
        """Each instant and its bytes."""

    def moment(self, index: int) -> Moment:
        """One of them with its components."""
        sizes = tuple(chain.from_iterable(self._sizes))
        (name, n_bytes), chosen = self.tops[index], self._chosen[index]
        text = self._labels.of(chosen)
        live = tuple([(component, part.of(sizes)) for component, part in chosen.components()])
        return Moment(name, text, n_bytes, live)


class OpenRuns(Record):
    """A rank's runs without their sizes, and these in a row."""

    outlines: tuple[Outline, ...]
    sizes: tuple[int, ...]
    labels: Labels


def open_runs(runs: Sequence[Run], layer: int) -> OpenRuns:
    """``layer``: number of the rank's first."""
    outlines: list[Outline] = []
    sizes: list[int] = []
    labels: list[str] = []
    first: dict[tuple[int, int, int], int] = {}
    for index, run in enumerate(runs):
        kind, _, tensors, fresh, again, reduced, _ = run.unit
        of = first.setdefault((id(tensors), id(fresh), id(again)), index)
        new, old = sizes_of(fresh), None if again is fresh else sizes_of(again)
        form = -1 if old is None else old.form
        number = run.layer - layer if kind == "block" else 0
        outlines.append(Outline(kind, reduced, run.times, number, new.form, form, of))
        if of < index:
            continue
        sizes += new.numbers
        labels += new.labels
        if old is not None:
            sizes += old.numbers
            labels += old.labels
    return OpenRuns(tuple(outlines), tuple(sizes), Labels(layer, labels))


class OpenStep:
    """A rank's step with the sizes of its units, open to those of its groups."""

    __slots__ = ("_beside", "_how", "_labels", "_outlines", "_sizes", "_totals")

    def __init__(self, how: Conduct, runs: OpenRuns, beyond: Beyond) -> None:
        beside = beyond_numbers(beyond)
        self._how, self._beside = how, beside.form
        self._outlines, self._labels = runs.outlines, runs.labels
        self._sizes = (*runs.sizes, *beside.numbers)  # in a row, as _walked gives out their places
        self._totals: dict[tuple[Hashable, ...], tuple[Walked, Sequence[int]]] = {}

    def motion(self, groups: OpenGroups) -> OpenMotion:
        """The step with these groups."""
        known = self._totals.get(groups.forms)
        if known is None:
            walked = _walked(self._how, self._outlines, self._beside, groups.forms)
            known = self._totals[groups.forms] = (walked, walked.units.of(self._sizes))
        walked, totals = known
        if not groups.forms:
            return OpenMotion(walked, totals, (self._sizes,), self._labels)
        totals = list(map(add, totals, walked.groups(groups.numbers)))
        return OpenMotion(walked, totals, (self._sizes, groups.numbers), self._labels)


def open_groups(groups: Sequence[Groups]) -> OpenGroups:
    """Groups, run by run, as forms and sizes. Those that are one object have their sizes once."""
    forms: list[Hashable] = []
    numbers: list[int] = []
    first: dict[int, int] = {}
    for index, found in enumerate(groups):
        of = first.setdefault(id(found), index)
        if of < index:
            forms.append(of)
            continue
        own = group_numbers(found)
        forms.append(own.form)
        numbers += own.numbers
    return OpenGroups(tuple(forms), tuple(numbers))


@lru_cache(maxsize=4096)
def _walked(how: Conduct, outlines: tuple[Outline, ...], beside: Hashable, forms: tuple[Hashable, ...]) -> Walked:
    """The walk of these runs. Places are given out to curves, run by run, then to what is beside, then to groups."""
    place = label = 0
    together: list[tuple[int, int, int]] = []
    runs: list[Run] = []

    def curve(form: int) -> Curve:
        nonlocal place, label
        lengths, digits = parts_of(form)
        made = open_curve(form, place, label)
        ends = list(accumulate(lengths, initial=place))
        together.extend((a, b, place + digits + i) for i, (a, b) in enumerate(pairwise(ends)))
        place += digits + len(lengths)
        label += len(lengths) - 1
        return made

    for outline in outlines:
        name = f"layer {outline.layer}" if outline.kind == "block" else NAMES[outline.kind]
        if outline.of < len(runs):
            unit = runs[outline.of].unit._replace(name=name)
        else:
            fresh = curve(outline.fresh)
            again = fresh if outline.again < 0 else curve(outline.again)
            unit = Unit(outline.kind, name, (), fresh, again, outline.reduced)
        runs.append(Run(unit, outline.times, outline.layer))
    beyond = open_beyond(beside, place)
    place += taken(beside)
    units = place
    groups: list[Groups] = []
    for form in forms:
        if isinstance(form, int):
            groups.append(groups[form])
            continue
        groups.append(groups_of(form, place))
        place += taken(form[0])  # type: ignore[index]
    timeline = OpenTimeline(place)
    Step(how, runs, groups or [NO_GROUPS] * len(runs), beyond, timeline).run()
    return _closed(timeline, units, place, together)


def _closed(timeline: OpenTimeline, units: int, places: int, together: list[tuple[int, int, int]]) -> Walked:
    """``units``: places before those of groups; ``together``: sizes that mostly come together, as (first place, behind
    the last one, place of their sum).
    """

    def counted(value: int) -> Counts:
        digits = array("I")
        digits.frombytes((value + halves(places)).to_bytes(places * DIGIT // 8, "little"))
        if sys.byteorder == "big":
            digits.byteswap()
        row = [n - HALF for n in digits]
        for first, end, whole in together:
            some = row[first]
            if some and end - first > 1 and row[first:end].count(some) == end - first:
                row[first:end] = [0] * (end - first)
                row[whole] = some
        return [(place, n) for place, n in enumerate(row) if n]

    instants: list[tuple[str, int, int]] = []
    candidates: list[Candidate] = []
    of_units: list[Counts] = []
    of_groups: list[Counts] = []
    before = 0
    for name, rivals in timeline.rivals().items():
        instants.append((name, len(candidates), len(candidates) + len(rivals)))
        for rival in rivals:
            change = counted(rival.bytes - before)
            of_units.append([(place, n) for place, n in change if place < units])
            of_groups.append([(place - units, n) for place, n in change if place >= units])
            candidates.append(Candidate(rival, counted))
            before = rival.bytes
    return Walked(instants, candidates, Sums(of_units), Sums(of_groups))
