"""A rank's step apart from its sizes, and the sizes: what is recorded once, and what is put into the record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import inf

from memcheck.accounts.program import NOTHING, Evaluated, Program, Recorder
from memcheck.accounts.ranks import Moment
from memcheck.accounts.sizes import named_curve, sizes_of
from memcheck.accounts.unit import NUMBERED
from memcheck.autograd.curve import Peak
from memcheck.frameworks.torch.data_parallel import (
    NO_UNIT_GROUPS,
    NamedRun,
    NamedUnit,
    StepSizes,
    StepUnits,
    UnitGroups,
)
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.pipelining import Border
from memcheck.frameworks.torch.rank_units import Run
from memcheck.frameworks.torch.step import Step
from memcheck.frameworks.torch.step_options import StepOptions
from memcheck.record import Record

LAYER = r"\blayer (\d+)"
NAMES = {
    "embedding": "embedding",
    "head": "head and loss",
    "stem": "patch embedding",
    "projector": "projector and scatter",
    "merger": "merger of earlier rows",
    "source": "encoder's input",
    "encoded": "encoder's output",
}

Presence = tuple[bool, ...]
"""Which sizes are not zero."""


class RunForm(Record):
    """A run without its sizes."""

    kind: str
    reduced: str
    adapted: bool
    times: int
    layer: int
    """Number of the first, counted from the rank's first."""
    fresh: int
    """Number of its curve's form."""
    again: int
    """-1: the same curve."""
    of: int
    """The run whose sizes these are."""


class RunSizes(Record):
    """A rank's runs without their sizes, and these in a row."""

    forms: tuple[RunForm, ...]
    sizes: tuple[int, ...]
    layer: int
    """Number of the rank's first."""
    highs: tuple[Peak, ...]
    """The highest points of the run's units, by their numbers."""


def run_sizes(runs: Sequence[Run], layer: int) -> RunSizes:
    """``layer``: number of the rank's first."""
    forms: list[RunForm] = []
    sizes: list[int] = []
    highs: list[Peak] = []
    first: dict[tuple[int, int, int], int] = {}
    for index, run in enumerate(runs):
        unit = run.unit
        of = first.setdefault((id(unit.tensors), id(unit.fresh), id(unit.again)), index)
        new, old = sizes_of(unit.fresh), None if unit.again is unit.fresh else sizes_of(unit.again)
        number = run.layer - layer if unit.kind in NUMBERED else 0
        again = -1 if old is None else old.form
        forms.append(RunForm(unit.kind, unit.reduced, unit.adapted, run.times, number, new.form, again, of))
        if of == index:
            for found in (new,) if old is None else (new, old):
                sizes += found.numbers
                highs += found.highs
    return RunSizes(tuple(forms), tuple(sizes), layer, tuple(highs))


class GroupForm(Record):
    """A unit's groups without their sizes."""

    there: Presence
    """The fields of each group; new gradients in the shards' dtype are left out where they are the same buffer."""
    same: Presence
    """Whether they are, for each group."""


class GroupSizes(Record):
    """The groups of a rank, run by run and the root's, without their sizes, and these in a row."""

    forms: tuple[GroupForm | int, ...]
    """A number: the groups of that run, which are one object with these."""
    sizes: tuple[int, ...]
    streams: tuple[int, ...]
    """The stream that allocates each size."""
    largest: int = 0
    """The largest flat buffer, gathered or to be reduced."""


NO_GROUP_SIZES = GroupSizes((), (), ())
FIELDS = len(Group._fields)

GATHERS, REDUCES = 1, 2
"""Streams of FSDP2 whose blocks none but they may use; 0 is the default stream."""
STREAMS = Group(GATHERS, 0, reduce_input=0, reduce_output=REDUCES, sharded=REDUCES, accumulated=0, cast=GATHERS)
"""Which stream allocates what (_fsdp_collectives.py): ``foreach_all_gather`` the flat output on the copy-in stream,
``foreach_reduce`` its output, which the sharded gradients are views of, on the reduce-scatter stream."""


def group_sizes(groups: Sequence[UnitGroups], root: Group) -> GroupSizes:
    """Groups that are one object have their sizes once. ``root``: comes last."""
    forms: list[GroupForm | int] = []
    sizes: list[int] = []
    streams: list[int] = []
    largest = 0
    first: dict[int, int] = {}
    for index, found in enumerate((*groups, UnitGroups(root))):
        of = first.setdefault(id(found), index)
        if of < index:
            forms.append(of)
            continue
        form, numbers = _group_numbers(found)
        largest = max(largest, *(g.flat for g in found), *(g.reduce_input for g in found))
        forms.append(form)
        sizes += numbers
        streams += [stream for stream, there in zip(STREAMS * len(form.same), form.there, strict=True) if there]
    return GroupSizes(tuple(forms), tuple(sizes), tuple(streams), largest)


def _group_numbers(groups: UnitGroups) -> tuple[GroupForm, list[int]]:
    values: list[int] = []
    same = []
    for g in groups:
        same.append(g.sharded == g.reduce_output)
        values += [*g[:4], 0 if same[-1] else g.sharded, g.accumulated, *g[6:]]
    return GroupForm(tuple([bool(n) for n in values]), tuple(same)), [n for n in values if n]


class OutsideSizes(Record):
    """What a step holds outside its units and groups."""

    there: tuple[Presence, ...]
    """Sizes that are there for each chunk, or for the whole rank where it runs none one by one."""
    sizes: tuple[int, ...]
    """These in a row, then those of the strategy's own buffers."""


def outside_sizes(beyond: Sequence[StepSizes], own: tuple[int, ...] = ()) -> OutsideSizes:
    """``beyond``: of each chunk, or of the rank; ``own``: sizes of the strategy's own buffers."""
    there: list[Presence] = []
    sizes: list[int] = []
    for each in beyond:
        border = each.border
        edges = (border.input_gradient, border.unsent_output, border.output_gradient)
        waiting = (each.rows, each.rows_gradient, each.features)
        values = (each.per_micro_batch, *edges, each.table, each.table_slice, each.masks, *waiting, *each.held)
        there.append(tuple([bool(n) for n in values]))
        sizes += [n for n in values if n]
    return OutsideSizes(tuple(there), (*sizes, *own))


class RankProgram:
    """A rank's step with the sizes of its units, open to those of its groups."""

    __slots__ = ("_groups", "_options", "_outside", "_runs", "_sizes")

    def __init__(self, options: StepOptions, runs: RunSizes, outside: OutsideSizes) -> None:
        self._options, self._runs, self._outside = options, runs, outside.there
        self._sizes = (*runs.sizes, *outside.sizes)  # in a row, as `recorded` gives out their places
        self._groups: dict[tuple[GroupForm | int, ...], tuple[Program, Sequence[int]]] = {}

    def peak(self, groups: GroupSizes) -> StepPeaks:
        """The step with these groups."""
        known = self._groups.get(groups.forms)
        if known is None:
            program = recorded(self._options, self._runs.forms, self._outside, groups.forms)
            known = self._groups[groups.forms] = (program, program.units(self._sizes))
        program, totals = known
        if not groups.forms:
            return StepPeaks(Evaluated(program, totals, (self._sizes,)), self._runs)
        both = program.with_groups(totals, groups.sizes)
        return StepPeaks(Evaluated(program, both, (self._sizes, groups.sizes)), self._runs, (totals, groups))


class StepPeaks:
    """A rank's step without the resident bytes: the highest moment of each instant."""

    __slots__ = ("_evaluated", "_grouped", "_runs", "tops")

    def __init__(
        self, evaluated: Evaluated, runs: RunSizes, grouped: tuple[Sequence[int], GroupSizes] | None = None
    ) -> None:
        """``grouped``: what every moment holds in addition to the groups, and the sizes of the groups."""
        self._evaluated, self._runs, self._grouped = evaluated, runs, grouped
        self.tops = evaluated.tops
        """Each instant and its bytes."""

    @property
    def ceiling(self) -> float:
        """No bound is known before the step is recorded."""
        return inf

    @property
    def program(self) -> Program:
        """What was recorded of the step, without sizes."""
        return self._evaluated.program

    @property
    def largest_block(self) -> int:
        """Bytes of the largest block that a unit or FSDP2 makes."""
        own = max([high.largest for high in self._runs.highs], default=0)
        return own if self._grouped is None else max(own, self._grouped[1].largest)

    def stream_tops(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Each instant and its bytes on the default stream, and on each of FSDP2's; nothing without groups."""
        if self._grouped is None:
            return ()
        totals, groups = self._grouped
        each = []
        for stream in (0, GATHERS, REDUCES):
            own = [size if of == stream else 0 for size, of in zip(groups.sizes, groups.streams, strict=True)]
            each.append(self.program.tops(None if stream else totals, tuple(own)))
        return tuple(each)

    def moment(self, index: int) -> Moment:
        """One instant with its components."""
        text = self._evaluated.mark(index).operation
        if self._runs.layer:
            import re

            text = re.sub(LAYER, lambda found: f"layer {int(found[1]) + self._runs.layer}", text)
        high = self.high(index)
        return self._evaluated.moment(index, text if high is None else f"{high.label} in {text}")

    def high(self, index: int) -> Peak | None:
        """The unit's highest point that an instant's is, if it is one."""
        number = self._evaluated.mark(index).top.high
        return None if number < 0 else self._runs.highs[number]


@lru_cache(maxsize=4096)
def recorded(
    options: StepOptions,
    forms: tuple[RunForm, ...],
    outside: tuple[Presence, ...],
    groups: tuple[GroupForm | int, ...],
) -> Program:
    """The record of these runs. Places are given out to curves, run by run, then to what is outside, then to groups."""
    place, high = 1, 0
    runs: list[NamedRun] = []
    for form in forms:
        name = NAMES.get(form.kind) or f"{NUMBERED[form.kind]} {form.layer}"
        if form.of < len(runs):
            unit = runs[form.of].unit._replace(name=name)
        else:
            fresh, place, high = named_curve(form.fresh, place, high)
            again = fresh
            if form.again >= 0:
                again, place, high = named_curve(form.again, place, high)
            unit = NamedUnit(form.kind, name, fresh, again, form.reduced, form.adapted)
        runs.append(NamedRun(unit, form.times, form.layer))
    beyond: list[StepSizes] = []
    for there in outside:
        beyond.append(_named_beyond(there, place))
        place += sum(there)
    own_sizes, place = place, place + options.parallel.sizes
    units = place - 1
    found: list[UnitGroups] = []
    for of in groups:
        if isinstance(of, int):
            found.append(found[of])
            continue
        found.append(_named_groups(of, place))
        place += sum(of.there)
    each, root = (found[:-1], found[-1].whole) if groups else ([NO_UNIT_GROUPS] * len(runs), NO_GROUP)
    recorder = Recorder()
    if options.schedule.passes:
        from memcheck.frameworks.torch.interleaved import record_chunks

        record_chunks(options, runs, each, root, beyond, recorder, own_sizes)
        return recorder.program(units)
    kind = Step
    if options.schedule.paired:
        from memcheck.frameworks.torch.step import PairedStep

        kind = PairedStep
    elif options.lifetimes.sinks:
        runs = sunk(runs)
    step_units = StepUnits(runs, each, root, beyond[0])
    kind(options, step_units, recorder, options.parallel.hooks(recorder, step_units, own_sizes)).run()
    return recorder.program(units)


def _named_groups(form: GroupForm, first: int) -> UnitGroups:
    row = places(form.there, first)
    found = []
    for index, alike in enumerate(form.same):
        own = Group(*row[FIELDS * index : FIELDS * (index + 1)])
        found.append(own._replace(sharded=own.reduce_output) if alike else own)
    return UnitGroups(*found)


def _named_beyond(there: Presence, first: int) -> StepSizes:
    own, arriving, unsent, leaving, table, slice_, masks, rows, rows_gradient, features, *held = places(there, first)
    border = Border(input_gradient=arriving, unsent_output=unsent, output_gradient=leaving)
    return StepSizes(own, tuple(held), border, table, slice_, masks, rows, rows_gradient, features)


def places(there: Presence, first: int) -> list[int]:
    """A place for each size that is not zero, from ``first`` on."""
    following = accumulate((int(one) for one in there), initial=first)
    return [place if one else NOTHING for one, place in zip(there, following, strict=False)]


def sunk(runs: Sequence[NamedRun]) -> list[NamedRun]:
    """The runs where DDP looks for parameters without gradients: a function of its own goes through all tensors of the
    model's output, so that graphs that nothing else reads live as long as the loss's (torch 2.13
    nn/parallel/distributed.py, ``_DDPSink``).
    """
    found = []
    for run in runs:
        unit = run.unit
        if unit.kind == "idle":
            unit = unit._replace(
                first_curve=unit.first_curve._replace(lingers=unit.first_curve.returned),
                later_curve=unit.later_curve._replace(lingers=unit.later_curve.returned),
            )
        found.append(run._replace(unit=unit))
    return found
