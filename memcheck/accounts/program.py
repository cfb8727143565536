"""A rank's step as a straight program over named sizes, and what given sizes make of it.

A step holds and frees tensors of known sizes, each a number of times. The order is the same whatever the sizes are. So
a step is recorded once: instructions that name a size by its index, and between them the moments that may be the
highest of their instant. Sizes are put in afterwards: one running sum gives the bytes of every moment, and the highest
moment of each instant is then told apart by component.

Memory curves of units are split into sizes in bytes and a pattern, which says which of the sizes are not zero. Two
curves of one pattern hold the same components at the same moments. So a step is recorded once for a pattern, and
evaluated with the bytes of each curve.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import add, itemgetter, mul

from memcheck.accounts.estimate import Instant
from memcheck.accounts.ranks import Moment
from memcheck.autograd.curve import Curve, Peak
from memcheck.record import Record

NOTHING = 0
"""The index of no size: an instruction with it allocates nothing."""

Parts = tuple[tuple[str, int], ...]
"""Components, each with the index of a size."""
Counts = list[tuple[int, int]]
"""Indices of sizes, each with its multiplicity."""


class Blocks(Record):
    """Equal blocks of memory."""

    size: int
    """Index of the size of each; ``NOTHING``: there are none."""
    times: int = 1
    """How many; negative: they are taken off a sum."""


Amount = tuple[Blocks, ...]
"""A sum of blocks of several sizes."""


class ComponentSizes(Record):
    """Sizes of several components that are always held and released together."""

    parts: Parts
    total: int
    """The index of their sum."""
    peak_number: int = -1
    """Number of the unit's peak at which they are live; -1: they are no peak."""


class Mark(Record):
    """A moment of the step that may be the highest of its instant (forward, backward, optimizer, ...)."""

    instant: str
    operation: str
    """The operation in words; for a unit's peak, the unit."""
    instructions_before: int
    """Number of instructions before it."""
    unit_peak: ComponentSizes
    """Sizes of a unit's own peak, in addition to what is live; empty where no unit runs."""


NO_COMPONENTS = ComponentSizes((), NOTHING)


class Recorder:
    """Records a step: ``hold`` and ``release`` allocate and free sizes, ``mark`` and ``high`` propose peaks."""

    __slots__ = ("_instructions", "_marks", "muted")

    def __init__(self) -> None:
        """Begin with no instruction and no moment."""
        self._instructions: list[tuple[Parts, int, int]] = []
        """Sizes by component, the index of their sum, and how often they are allocated; negative: freed."""
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
        """Allocate ``times`` blocks of a size. ``size``: its index among all sizes, not its bytes."""
        if size and times:
            self._instructions.append((((component, size),), size, times))

    def release(self, component: str, size: int, times: int = 1) -> None:
        """Free ``times`` blocks of a size."""
        self.hold(component, size, -times)

    def hold_components(self, components: ComponentSizes, times: int = 1) -> None:
        """Allocate sizes of several components ``times`` times."""
        if components.parts and times:
            self._instructions.append((components.parts, components.total, times))

    def release_components(self, components: ComponentSizes) -> None:
        """Free sizes of several components."""
        self.hold_components(components, -1)

    def hold_amount(self, component: str, amount: Amount) -> None:
        """Allocate a sum of blocks."""
        for size, times in amount:
            self.hold(component, size, times)

    def release_amount(self, component: str, amount: Amount) -> None:
        """Free a sum of blocks."""
        for size, times in amount:
            self.release(component, size, times)

    def undo_since(self, start: int) -> None:
        """Take back the net change since instruction ``start``: its moments remain, and what it held is free again."""
        self.repeat(start, -1)

    def repeat(self, start: int, times: int) -> None:
        """Record the net change since instruction ``start`` another ``times`` times, as for equal layers in a row."""
        if not times:
            return
        net: dict[tuple[Parts, int], int] = {}
        for sizes_by_component, total, count in self._instructions[start:]:
            net[sizes_by_component, total] = net.get((sizes_by_component, total), 0) + count
        self._instructions += [
            (sizes_by_component, total, times * count) for (sizes_by_component, total), count in net.items() if count
        ]

    def mark(self, instant: str, operation: str) -> None:
        """Record the current moment as a candidate for the peak of the instant."""
        self.high(instant, NO_COMPONENTS, operation)

    def high(self, instant: str, top: ComponentSizes, where: str) -> None:
        """Record a candidate for the peak of the instant: what lives now plus ``top``, a unit's own peak.

        ``where``: the unit, or the operation in words.
        """
        if not self.muted:
            self._marks.append(Mark(instant, where, len(self._instructions), top))

    def program(self, units: int) -> Program:
        """Return the recorded step. ``units``: the number of sizes of units; later indices are sizes of groups."""
        return Program(self._instructions, self._marks, units)


def picking(indices: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Return a function that picks these indices of a sequence, and returns a sequence also for one index or none."""
    if len(indices) < 2:
        return lambda row: [row[index] for index in indices]
    return itemgetter(*indices)


class Sum:
    """A sum of sizes, each times a count; its bytes are computed once the sizes are known."""

    __slots__ = ("_counts", "_pick")

    def __init__(self, counts: Counts) -> None:
        self._pick = picking([size - 1 for size, _ in counts])
        self._counts = tuple([count for _, count in counts])

    def total(self, sizes: Sequence[int]) -> int:
        """The sum in bytes: each picked size times its count. ``sizes``: bytes of every size, by index."""
        return sum(map(mul, self._counts, self._pick(sizes)))


class Sums:
    """The live bytes of many moments, each stored as the changes since the moment before it."""

    __slots__ = ("_counts", "_ends", "_pick")

    def __init__(self, changes: Sequence[Counts], order: Sequence[int], before: int = 0) -> None:
        """Flatten the changes of all moments, so that their totals are computed with few calls.

        ``changes``: for each moment, (number of a size, how many times more it is live than at the moment before).
        ``order``: in which :meth:`totals` returns the moments. ``before``: the number of sizes before the first of
        these.
        """
        flat = [change for moment in changes for change in moment]
        self._pick = picking([size - before - 1 for size, _ in flat])
        self._counts = tuple([count for _, count in flat])
        ends = list(accumulate(map(len, changes)))
        self._ends = picking([ends[index] for index in order])

    def totals(self, sizes: Sequence[int]) -> Sequence[int]:
        """Compute the bytes of every moment, in ``order``. ``sizes``: bytes of every size, by index."""
        return self._ends(list(accumulate(map(mul, self._counts, self._pick(sizes)), initial=0)))


class Program:
    """A recorded step, which is evaluated with the sizes of units (layers) and of groups (FSDP) separately.

    The same group sizes occur with many unit sizes, so that their part of every moment is cached.
    """

    __slots__ = ("_components", "_group_totals", "_groups", "_instructions", "_marks", "_units", "instants")

    REMEMBERED = 256

    def __init__(self, instructions: list[tuple[Parts, int, int]], marks: list[Mark], units: int) -> None:
        """Sort the recorded moments by instant, and split their changes into sizes of units and sizes of FSDP groups.

        ``instructions``: sizes that are held or released, in order. ``marks``: moments whose live bytes are compared.
        ``units``: sizes up to this number are those of units; later ones are those of groups.
        """
        marks_by_instant: dict[str, list[int]] = {}
        for number, mark in enumerate(marks):
            marks_by_instant.setdefault(mark.instant, []).append(number)
        order: list[int] = []
        for numbers in marks_by_instant.values():
            order += numbers
        unit_changes: list[Counts] = []
        group_changes: list[Counts] = []
        for changes in _changes(instructions, marks):
            unit_changes.append([change for change in changes if change[0] <= units])
            group_changes.append([change for change in changes if change[0] > units])
        self._instructions = instructions
        self._marks = [marks[number] for number in order]
        self._units = Sums(unit_changes, order)
        self._groups = Sums(group_changes, order, units)
        self._group_totals: dict[tuple[int, ...], Sequence[int]] = {}
        self._components: dict[int, tuple[tuple[str, Sum], ...]] = {}
        self.instants: list[tuple[str, int, int]] = []
        """Name of each instant with its range of moments, [from, to), in the order in which it first occurs."""
        first = 0
        for instant, numbers in marks_by_instant.items():
            self.instants.append((instant, first, first + len(numbers)))
            first += len(numbers)

    @property
    def lengths(self) -> tuple[int, int]:
        """How many instructions and marks were recorded."""
        return len(self._instructions), len(self._marks)

    def units(self, sizes: Sequence[int]) -> Sequence[int]:
        """Compute the bytes of every moment without groups, in the order of ``instants``. ``sizes``: bytes of every
        size, by index.
        """
        return self._units.totals(sizes)

    def with_groups(self, totals: Sequence[int], sizes: tuple[int, ...]) -> Sequence[int]:
        """Add the bytes of groups to ``totals``, the bytes of every moment without them. ``sizes``: of groups."""
        group_totals = self._group_totals.get(sizes)
        if group_totals is None:
            if len(self._group_totals) >= self.REMEMBERED:
                self._group_totals.clear()
            group_totals = self._group_totals[sizes] = self._groups.totals(sizes)
        return list(map(add, totals, group_totals))

    def tops(self, totals: Sequence[int] | None, sizes: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
        """Compute the peak of each instant in bytes. ``totals``: every moment without groups; None: groups alone."""
        live = self._groups.totals(sizes) if totals is None else self.with_groups(totals, sizes)
        return tuple([(instant, max(live[first:end])) for instant, first, end in self.instants])

    def mark(self, number: int) -> Mark:
        """Return the moment with this number."""
        return self._marks[number]

    def components(self, number: int) -> tuple[tuple[str, Sum], ...]:
        """Return the live bytes of a moment by component, in the order in which the components were allocated."""
        live = self._components.get(number)
        if live is None:
            live = self._components[number] = self._live(self._marks[number])
        return live

    def _live(self, mark: Mark) -> tuple[tuple[str, Sum], ...]:
        """Count the sizes that live at a moment, by component. A component that was freed in between is listed anew."""
        counts: dict[str, dict[int, int]] = {}
        for sizes_by_component, _, times in [
            *self._instructions[: mark.instructions_before],
            (mark.unit_peak.parts, mark.unit_peak.total, 1),
        ]:
            for component, size in sizes_by_component:
                of_component = counts.setdefault(component, {})
                of_component[size] = of_component.get(size, 0) + times
                if not of_component[size]:
                    del of_component[size]
                if not of_component:
                    del counts[component]
        return tuple([(name, Sum(list(of_component.items()))) for name, of_component in counts.items()])


def _changes(instructions: list[tuple[Parts, int, int]], marks: list[Mark]) -> list[Counts]:
    """List for each moment the sizes that are live more or fewer times than at the moment before, and by how many.

    ``instructions``: sizes that are held (positive times) or released, in order. ``marks``: the moments, each with the
    number of instructions before it and the peak of the unit that runs.
    """
    changes: list[Counts] = []
    done, top = 0, NOTHING
    for mark in marks:
        change: dict[int, int] = {top: -1, mark.unit_peak.total: 1} if top != mark.unit_peak.total else {}
        for _, total, times in instructions[done : mark.instructions_before]:
            change[total] = change.get(total, 0) + times
        changes.append([(size, times) for size, times in change.items() if size and times])
        done, top = mark.instructions_before, mark.unit_peak.total
    return changes


class Evaluated:
    """A recorded step with the bytes of its sizes: the highest moment of each instant."""

    __slots__ = ("_chosen", "_sizes", "program", "tops")

    def __init__(self, program: Program, totals: Sequence[int], sizes: tuple[Sequence[int], ...]) -> None:
        """``totals``: bytes of every moment; ``sizes``: those of units, and of groups."""
        self.program, self._sizes = program, sizes
        self._chosen: list[int] = []
        tops = []
        for instant, first, end in program.instants:
            of_instant = totals[first:end]
            peak = max(of_instant)
            self._chosen.append(first + of_instant.index(peak))
            tops.append((instant, peak))
        self.tops = tuple(tops)
        """Each instant and its bytes."""

    def mark(self, index: int) -> Mark:
        """The highest moment of one instant, without its bytes."""
        return self.program.mark(self._chosen[index])

    def moment(self, index: int, operation: str) -> Moment:
        """Return the highest moment of one instant with its bytes, in total and by component.

        ``index``: of the instant. ``operation``: what runs then, in words.
        """
        sizes: list[int] = []
        for numbers in self._sizes:
            sizes += numbers
        instant, n_bytes = self.tops[index]
        live = [(name, size.total(sizes)) for name, size in self.program.components(self._chosen[index])]
        return Moment(instant, operation, n_bytes, tuple(live))


ENDS = 2
"""Layers at each end of a run of equal ones that are recorded singly: the first frees what the layer before left."""


def layer_groups(times: Sequence[int]) -> list[tuple[int, int]]:
    """Cut the layers of a model into groups [from, to): single layers, and the middle of each long run of equal ones.

    ``times``: the number of layers of each run, in order.
    """
    groups: list[tuple[int, int]] = []
    start = 0
    for count in times:
        end = start + count
        first, last = start + ENDS, end - ENDS
        if last - first < 2:
            first = last = end
        groups += [(i, i + 1) for i in range(start, first)]
        groups += [(first, last)] if first < last else []
        groups += [(i, i + 1) for i in range(last, end)]
        start = end
    return groups


class Timeline:
    """The live bytes of a step by component, recorded with bytes instead of indices of sizes."""

    __slots__ = ("_recorder", "_sizes")

    def __init__(self) -> None:
        self._recorder = Recorder()
        self._sizes: list[int] = []

    def hold(self, component: str, n_bytes: int) -> None:
        """Allocate ``n_bytes`` of a component."""
        self._sizes.append(n_bytes)
        self._recorder.hold(component, len(self._sizes))

    def release(self, component: str, n_bytes: int) -> None:
        """Free ``n_bytes`` of a component."""
        self.hold(component, -n_bytes)

    def mark(self, instant: str, operation: str) -> None:
        """Record the current moment as a candidate for the peak of the instant."""
        self._recorder.mark(instant, operation)

    def instants(self) -> tuple[Instant, ...]:
        """Return the peak of each instant, in the order in which the instants first occurred."""
        program = self._recorder.program(len(self._sizes))
        step = Evaluated(program, program.units(self._sizes), (self._sizes,))
        moments = [step.moment(index, step.mark(index).operation) for index in range(len(step.tops))]
        instants = []
        for name, operation, total, live in moments:
            components = {component: n_bytes for component, n_bytes in live if n_bytes}
            instants.append(Instant(name, operation, total, components))
        return tuple(instants)


Names = tuple[str, ...]

SCALARS = (
    "autocast_cache_bytes",
    "gradient_bytes",
    "until_backward_ends",
    "extra_output_bytes",
    "input_bytes",
    "freed_input_bytes",
    "input_gradient_bytes",
    "output_gradient_bytes",
    "gradient_bytes_for_earlier_units",
    "gradient_bytes_of_later_units",
    "until_graph_freed",
    "weight_backward_bytes",
)
"""Fields of :class:`memcheck.autograd.curve.Curve` that are one number of bytes, not a list of components."""


SOMETIMES = ("peak_before_loss", "grad_hook_peak", "later_grad_hook_peak")
"""Peaks that not every curve has, as the fields of :class:`memcheck.autograd.curve.Curve` are named."""


class CurvePattern(Record):
    """The pattern of a unit's memory curve: the components that are alive at each of its points, without bytes."""

    saved: Names
    """Components of the tensors saved for backward."""
    forward: Names
    """Components at the forward's peak."""
    backward: Names
    """Components at the backward's peak."""
    sometimes: tuple[Names | None, ...]
    """Components at the peaks that only some units have, in the order of ``SOMETIMES``; None: the unit has no such
    peak.
    """
    scalars: tuple[bool, ...]
    """Which of ``SCALARS`` are not zero."""


class Sizes(Record):
    """The sizes of one curve."""

    pattern: int
    """Number of the curve's :class:`CurvePattern`."""
    numbers: tuple[int, ...]
    """Bytes of each component at each point of the pattern, then the nonzero scalars, then the sum of each point."""
    peaks: tuple[Peak, ...]
    """The peaks: of forward, of backward, and those of ``SOMETIMES`` that the curve has."""


class NamedCurve(Record):
    """A memory curve with indices of sizes instead of bytes: see :class:`memcheck.autograd.curve.Curve`."""

    saved_bytes: ComponentSizes
    forward_peak: ComponentSizes
    backward_peak: ComponentSizes
    peak_before_loss: ComponentSizes | None = None
    grad_hook_peak: ComponentSizes | None = None
    later_grad_hook_peak: ComponentSizes | None = None
    autocast_cache_bytes: int = NOTHING
    gradient_bytes: int = NOTHING
    until_backward_ends: int = NOTHING
    extra_output_bytes: int = NOTHING
    input_bytes: int = NOTHING
    freed_input_bytes: int = NOTHING
    input_gradient_bytes: int = NOTHING
    output_gradient_bytes: int = NOTHING
    gradient_bytes_for_earlier_units: int = NOTHING
    gradient_bytes_of_later_units: int = NOTHING
    until_graph_freed: int = NOTHING
    weight_backward_bytes: int = NOTHING

    @property
    def passes_back(self) -> bool:
        """Whether the unit has a backward. A frozen unit with nothing trained before it has no graph, and no hooks."""
        return bool(self.saved_bytes.parts or self.backward_peak.parts)


_patterns: dict[CurvePattern, int] = {}
_by_number: list[CurvePattern] = []
_curves: dict[int, tuple[Curve, Sizes]] = {}
REMEMBERED = 16384


def forget() -> None:
    """Drop every cached curve."""
    _curves.clear()


def sizes_of(curve: Curve) -> Sizes:
    """Return the sizes of a curve from the cache, whose key is the identity of the curve; an entry keeps it alive."""
    entry = _curves.get(id(curve))
    if entry is None:
        if len(_curves) >= REMEMBERED:
            _curves.clear()
        entry = _curves[id(curve)] = (curve, _sizes(curve))
    return entry[1]


def _sizes(curve: Curve) -> Sizes:
    """Split a unit's memory curve into its pattern (which of its terms are not zero) and the terms' bytes.

    Curves of equal pattern share a recorded step, which is then evaluated with the bytes of each.
    """
    optional: list[Peak | None] = [getattr(curve, name) for name in SOMETIMES]
    highs = (curve.forward_peak, curve.backward_peak, *[peak for peak in optional if peak is not None])
    components_of = [curve.saved_components, *(peak.components for peak in highs)]
    scalars = [getattr(curve, name) for name in SCALARS]
    names = [tuple([name for name, _ in components]) for components in components_of]
    optional_names = iter(names[3:])
    present = tuple([None if peak is None else next(optional_names) for peak in optional])
    pattern = CurvePattern(names[0], names[1], names[2], present, tuple([bool(n) for n in scalars]))
    if pattern not in _patterns:
        _patterns[pattern] = len(_by_number)
        _by_number.append(pattern)
    numbers: list[int] = []
    totals: list[int] = []
    for components in components_of:
        component_bytes = [n_bytes for _, n_bytes in components]
        numbers += component_bytes
        totals.append(sum(component_bytes))
    numbers += [n_bytes for n_bytes in scalars if n_bytes]
    return Sizes(_patterns[pattern], (*numbers, *totals), highs)


class PlacedCurve(Record):
    """A curve with indices of sizes, and the indices that are free after it."""

    curve: NamedCurve
    next_size: int
    next_peak: int


def named_curve(pattern: int, first: int, high: int) -> PlacedCurve:
    """Build a memory curve whose fields are indices of sizes instead of bytes, for a record that many ranks share.

    ``pattern``: the number of its :class:`CurvePattern`. ``first``: the index of its first size. ``high``: the number
    of its first peak. Indices are given in the order of :attr:`Sizes.numbers`.
    """
    recorded = _by_number[pattern]
    optional_names = {
        field: names for field, names in zip(SOMETIMES, recorded.sometimes, strict=True) if names is not None
    }
    points = [recorded.saved, recorded.forward, recorded.backward, *optional_names.values()]
    sizes = itertools.count(first)
    parts = [tuple([(name, next(sizes)) for name in names]) for names in points]
    scalars = {name: next(sizes) for name, present in zip(SCALARS, recorded.scalars, strict=True) if present}
    totals = [next(sizes) for _ in points]
    saved, *peaks = [ComponentSizes(part, total) for part, total in zip(parts, totals, strict=True)]
    forward, backward, *optional = [peak._replace(peak_number=number) for number, peak in enumerate(peaks, high)]
    curve = NamedCurve(saved, forward, backward, **scalars)  # type: ignore[arg-type]
    curve = curve._replace(**dict(zip(optional_names, optional, strict=True)))  # type: ignore[arg-type]
    return PlacedCurve(curve, next_size=next(sizes), next_peak=high + len(peaks))
