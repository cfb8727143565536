"""A rank's step as a straight program over named sizes, and what given sizes make of it.

A step holds and frees tensors of known sizes, each a number of times. The order is the same whatever the sizes are. So
a step is recorded once: instructions that name a size by its place, and between them the moments that may be the
highest of their instant. Sizes are put in afterwards: one running sum gives the bytes of every moment, and the highest
moment of each instant is then told apart by component.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import add, itemgetter, mul

from memcheck.accounts.estimate import Instant
from memcheck.accounts.ranks import Moment
from memcheck.record import Record

NOTHING = 0
"""The place of no size: whatever holds it holds nothing."""

Parts = tuple[tuple[str, int], ...]
"""Components, each with the place of a size."""
Counts = list[tuple[int, int]]
"""Places of sizes, each with how often it counts."""
Amount = tuple[tuple[int, int], ...]
"""A sum of sizes: places, each with how often it counts."""


class Bundle(Record):
    """Sizes that always come together."""

    parts: Parts
    total: int
    """The place of their sum."""
    high: int = -1
    """Which of a unit's highest points they are; -1: none."""


class Mark(Record):
    """A moment that may be the highest of its instant."""

    instant: str
    operation: str
    """With a unit's highest point, the unit."""
    after: int
    """How many instructions come before it."""
    top: Bundle
    """A unit's highest point on top of what lives; empty where there is none."""


NO_BUNDLE = Bundle((), NOTHING)


class Recorder:
    """Takes down a step: ``hold`` and ``release`` change what lives, ``mark`` and ``high`` propose a moment."""

    __slots__ = ("_instructions", "_marks", "muted")

    def __init__(self) -> None:
        self._instructions: list[tuple[Parts, int, int]] = []
        """Parts, the place of their sum, how many times; fewer where negative."""
        self._marks: list[Mark] = []
        self.muted = False
        """While set, steps are recorded only for what they leave allocated: their moments are no candidates for the
        peak.
        """

    @property
    def here(self) -> int:
        """The number of instructions so far: where a repetition starts."""
        return len(self._instructions)

    def hold(self, component: str, size: int, times: int = 1) -> None:
        """``times`` more of the size from now on."""
        if size and times:
            self._instructions.append((((component, size),), size, times))

    def release(self, component: str, size: int, times: int = 1) -> None:
        """``times`` fewer of the size from now on."""
        self.hold(component, size, -times)

    def hold_bundle(self, bundle: Bundle, times: int = 1) -> None:
        """Several components at once."""
        if bundle.parts and times:
            self._instructions.append((bundle.parts, bundle.total, times))

    def hold_amount(self, component: str, amount: Amount, sign: int = 1) -> None:
        """A sum of sizes."""
        for size, times in amount:
            self.hold(component, size, sign * times)

    def repeat(self, start: int, times: int) -> None:
        """What has changed since ``start`` changes ``times`` more."""
        if not times:
            return
        net: dict[tuple[Parts, int], int] = {}
        for parts, total, count in self._instructions[start:]:
            net[parts, total] = net.get((parts, total), 0) + count
        self._instructions += [(parts, total, times * count) for (parts, total), count in net.items() if count]

    def mark(self, instant: str, operation: str) -> None:
        """The present as a candidate for the instant's maximum."""
        self.high(instant, NO_BUNDLE, operation)

    def high(self, instant: str, top: Bundle, where: str) -> None:
        """The present plus a unit's highest point."""
        if not self.muted:
            self._marks.append(Mark(instant, where, len(self._instructions), top))

    def program(self, units: int) -> Program:
        """What was recorded. ``units``: the last place that is no group's."""
        return Program(self._instructions, self._marks, units)


def picking(places: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """What is at these places, as a sequence however few they are."""
    if len(places) < 2:
        return lambda row: [row[place] for place in places]
    return itemgetter(*places)


class Sum:
    """A sum of sizes, each times a count."""

    __slots__ = ("_counts", "_pick")

    def __init__(self, counts: Counts) -> None:
        self._pick = picking([place - 1 for place, _ in counts])
        self._counts = tuple([count for _, count in counts])

    def total(self, sizes: Sequence[int]) -> int:
        """The sum in bytes: each picked size times its count. ``sizes``: bytes of every size, by place."""
        return sum(map(mul, self._counts, self._pick(sizes)))


class Sums:
    """Many sums, each by what it has more and less than the one before."""

    __slots__ = ("_counts", "_ends", "_pick")

    def __init__(self, changes: Sequence[Counts], order: Sequence[int], before: int = 0) -> None:
        """``order``: in which the sums are given back; ``before``: places in front of those of ``sizes``."""
        every = [change for one in changes for change in one]
        self._pick = picking([place - before - 1 for place, _ in every])
        self._counts = tuple([count for _, count in every])
        ends = list(accumulate(map(len, changes)))
        self._ends = picking([ends[index] for index in order])

    def totals(self, sizes: Sequence[int]) -> Sequence[int]:
        """Bytes of every sum, in the given order. ``sizes``: bytes of every size, by place."""
        return self._ends(list(accumulate(map(mul, self._counts, self._pick(sizes)), initial=0)))


class Program:
    """What was recorded of a step. It is evaluated with sizes of units, and apart from them of groups."""

    __slots__ = ("_components", "_group_totals", "_groups", "_instructions", "_marks", "_units", "instants")

    REMEMBERED = 256

    def __init__(self, instructions: list[tuple[Parts, int, int]], marks: list[Mark], units: int) -> None:
        numbers: dict[str, list[int]] = {}
        for number, mark in enumerate(marks):
            numbers.setdefault(mark.instant, []).append(number)
        order = [number for same in numbers.values() for number in same]
        changes = _changes(instructions, marks)
        self._instructions = instructions
        self._marks = [marks[number] for number in order]
        self._units = Sums([[c for c in row if c[0] <= units] for row in changes], order)
        self._groups = Sums([[c for c in row if c[0] > units] for row in changes], order, units)
        self._group_totals: dict[tuple[int, ...], Sequence[int]] = {}
        self._components: dict[int, tuple[tuple[str, Sum], ...]] = {}
        self.instants: list[tuple[str, int, int]] = []
        """Each with its moments, [from, to), in the order in which it first occurs."""
        first = 0
        for instant, same in numbers.items():
            self.instants.append((instant, first, first + len(same)))
            first += len(same)

    @property
    def lengths(self) -> tuple[int, int]:
        """How many instructions and marks were recorded."""
        return len(self._instructions), len(self._marks)

    def units(self, sizes: Sequence[int]) -> Sequence[int]:
        """What every moment holds of units and outside them, in the order of ``instants``."""
        return self._units.totals(sizes)

    def with_groups(self, totals: Sequence[int], sizes: tuple[int, ...]) -> Sequence[int]:
        """``totals`` and what every moment has of groups. The same groups come with many units."""
        found = self._group_totals.get(sizes)
        if found is None:
            if len(self._group_totals) >= self.REMEMBERED:
                self._group_totals.clear()
            found = self._group_totals[sizes] = self._groups.totals(sizes)
        return list(map(add, totals, found))

    def tops(self, totals: Sequence[int] | None, sizes: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
        """Each instant and its bytes, of ``totals`` and some groups' sizes; None: of these alone."""
        found = self._groups.totals(sizes) if totals is None else self.with_groups(totals, sizes)
        return tuple([(instant, max(found[first:end])) for instant, first, end in self.instants])

    def mark(self, number: int) -> Mark:
        """One of the moments."""
        return self._marks[number]

    def components(self, number: int) -> tuple[tuple[str, Sum], ...]:
        """What lives at a moment, in the order in which it has been held since it was last gone."""
        known = self._components.get(number)
        if known is None:
            known = self._components[number] = self._live(self._marks[number])
        return known

    def _live(self, mark: Mark) -> tuple[tuple[str, Sum], ...]:
        counts: dict[str, dict[int, int]] = {}
        for parts, _, times in [*self._instructions[: mark.after], (mark.top.parts, mark.top.total, 1)]:
            for component, place in parts:
                of_component = counts.setdefault(component, {})
                of_component[place] = of_component.get(place, 0) + times
                if not of_component[place]:
                    del of_component[place]
                if not of_component:  # what an earlier moment held and gave back does not decide this one's order
                    del counts[component]
        return tuple([(name, Sum(list(found.items()))) for name, found in counts.items()])


def _changes(instructions: list[tuple[Parts, int, int]], marks: list[Mark]) -> list[Counts]:
    """What each moment has more and less than the one before."""
    found: list[Counts] = []
    done, top = 0, NOTHING
    for mark in marks:
        change: dict[int, int] = {top: -1, mark.top.total: 1} if top != mark.top.total else {}
        for _, total, times in instructions[done : mark.after]:
            change[total] = change.get(total, 0) + times
        found.append([(place, times) for place, times in change.items() if place and times])
        done, top = mark.after, mark.top.total
    return found


class Evaluated:
    """A program with its sizes: the highest moment of each instant."""

    __slots__ = ("_chosen", "_sizes", "program", "tops")

    def __init__(self, program: Program, totals: Sequence[int], sizes: tuple[Sequence[int], ...]) -> None:
        """``totals``: bytes of every moment; ``sizes``: those of units, and of groups."""
        self.program, self._sizes = program, sizes
        self._chosen: list[int] = []
        tops = []
        for instant, first, end in program.instants:
            some = totals[first:end]
            best = max(some)
            self._chosen.append(first + some.index(best))
            tops.append((instant, best))
        self.tops = tuple(tops)
        """Each instant and its bytes."""

    def mark(self, index: int) -> Mark:
        """The highest moment of one instant, without its bytes."""
        return self.program.mark(self._chosen[index])

    def moment(self, index: int, operation: str) -> Moment:
        """The highest moment of one instant with its components. ``operation``: in words."""
        sizes = [n for some in self._sizes for n in some]
        instant, n_bytes = self.tops[index]
        live = [(name, part.total(sizes)) for name, part in self.program.components(self._chosen[index])]
        return Moment(instant, operation, n_bytes, tuple(live))


ENDS = 2
"""Layers at each end of a run that are walked one by one: the first still frees what its neighbour left."""


def layer_groups(times: Sequence[int]) -> list[tuple[int, int]]:
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


class Timeline:
    """Bytes by component as they come and go; each call's bytes are a size of their own."""

    __slots__ = ("_recorder", "_sizes")

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._sizes: list[int] = []

    def hold(self, component: str, n_bytes: int) -> None:
        """``n_bytes`` more from now on."""
        self._sizes.append(n_bytes)
        self._recorder.hold(component, len(self._sizes))

    def release(self, component: str, n_bytes: int) -> None:
        """``n_bytes`` fewer from now on."""
        self.hold(component, -n_bytes)

    def mark(self, instant: str, operation: str) -> None:
        """The present as a candidate for the instant's maximum."""
        self._recorder.mark(instant, operation)

    def instants(self) -> tuple[Instant, ...]:
        """The maximum of each instant, in the order in which they first occurred."""
        program = self._recorder.program(len(self._sizes))
        found = Evaluated(program, program.units(self._sizes), (self._sizes,))
        moments = [found.moment(index, found.mark(index).operation) for index in range(len(found.tops))]
        return tuple([Instant(name, text, total, {k: v for k, v in live if v}) for name, text, total, live in moments])
