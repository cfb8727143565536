"""A rank's step apart from its sizes, and the sizes: what is recorded once, and what is put into the record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import inf

from memcheck.accounts.program import NOTHING, Evaluated, Program, Recorder, named_curve, sizes_of
from memcheck.accounts.ranks import NUMBERED, Moment, Run
from memcheck.autograd.curve import Peak
from memcheck.frameworks.torch.data_parallel import (
    NO_GROUP,
    NO_UNIT_GROUPS,
    Group,
    NamedRun,
    NamedUnit,
    StepSizes,
    StepUnits,
    UnitGroups,
)
from memcheck.frameworks.torch.pipelining import StageExchange
from memcheck.frameworks.torch.step import PairedStep, Step, StepOptions
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
"""Which sizes are not zero, in the order of the fields of a record."""


class RunPattern(Record):
    """A run of equal units without its sizes: the pattern says only which sizes are not zero."""

    kind: str
    reduced_by_loss: str
    frozen_and_recomputed: bool
    """The unit has adapters."""
    times: int
    """Number of the run's units."""
    first_layer: int
    """Number of the run's first layer, counted from the rank's first layer."""
    first_pattern: int
    """Number of the pattern of the curve in the first micro-batch."""
    later_pattern: int
    """Number of the pattern of the curve in later micro-batches; -1: they have the same curve."""
    same_as: int
    """Index of the first run with the same unit, which holds the sizes."""


class RunSizes(Record):
    """The runs of a rank, split into their patterns and a flat tuple of their sizes in bytes."""

    patterns: tuple[RunPattern, ...]
    sizes: tuple[int, ...]
    first_layer: int
    """Number of the rank's first layer in the model."""
    peaks: tuple[Peak, ...]
    """The peaks of the units, by their numbers in the program."""


def run_sizes(runs: Sequence[Run], layer: int) -> RunSizes:
    """Split the runs of a rank into their patterns and their sizes in bytes; equal units have their sizes once.

    ``layer``: number of the rank's first layer in the model.
    """
    patterns: list[RunPattern] = []
    sizes: list[int] = []
    highs: list[Peak] = []
    first: dict[tuple[int, int, int], int] = {}
    for index, run in enumerate(runs):
        unit = run.unit
        same_as = first.setdefault((id(unit.tensors), id(unit.first_curve), id(unit.later_curve)), index)
        curves = [sizes_of(unit.first_curve)] + (
            [] if unit.later_curve is unit.first_curve else [sizes_of(unit.later_curve)]
        )
        number = run.first_layer - layer if unit.kind in NUMBERED else 0
        later_pattern = curves[1].pattern if len(curves) > 1 else -1
        patterns.append(
            RunPattern(
                unit.kind,
                unit.reduced_by_loss,
                unit.frozen_and_recomputed,
                run.times,
                number,
                curves[0].pattern,
                later_pattern,
                same_as,
            )
        )
        if same_as == index:
            for curve in curves:
                sizes += curve.numbers
                highs += curve.peaks
    return RunSizes(tuple(patterns), tuple(sizes), layer, tuple(highs))


class GroupPattern(Record):
    """A unit's FSDP groups without their sizes: only which sizes are not zero."""

    present: Presence
    """Which fields of each group are not zero. ``sharded_gradients`` counts as zero where it is the buffer
    ``reduce_scatter_output``."""
    one_buffer: Presence
    """For each group, whether ``sharded_gradients`` and ``reduce_scatter_output`` are one buffer."""


class GroupSizes(Record):
    """The FSDP groups of a rank, run by run and then the root, split into patterns and sizes in bytes."""

    patterns: tuple[GroupPattern | int, ...]
    """A number in place of a pattern: the index of an earlier run with the same groups."""
    sizes: tuple[int, ...]
    streams: tuple[int, ...]
    """The stream that allocates each size."""
    largest: int = 0
    """The largest flat buffer, gathered or to be reduced."""


NO_GROUP_SIZES = GroupSizes((), (), ())
FIELDS = len(Group._fields)

DEFAULT_STREAM, GATHERS, REDUCES = 0, 1, 2
"""CUDA streams: the default one, and FSDP2's for all-gathers and reduce-scatters. Blocks are not shared among them."""
STREAMS = Group(
    all_gather_output=GATHERS,
    unsharded_params=DEFAULT_STREAM,
    reduce_scatter_input=DEFAULT_STREAM,
    reduce_scatter_output=REDUCES,
    sharded_gradients=REDUCES,
    unsharded_gradients=DEFAULT_STREAM,
    all_gather_input=GATHERS,
)
"""Which stream allocates what (_fsdp_collectives.py): ``foreach_all_gather`` the flat output on the copy-in stream,
``foreach_reduce`` its output, which the sharded gradients are views of, on the reduce-scatter stream."""


def group_sizes(groups: Sequence[UnitGroups], root: Group) -> GroupSizes:
    """Split the FSDP groups of a rank into patterns and sizes in bytes; identical groups have their sizes once.

    ``groups``: one entry per run. ``root``: the root's group, which comes last.
    """
    patterns: list[GroupPattern | int] = []
    sizes: list[int] = []
    streams: list[int] = []
    largest = 0
    first: dict[int, int] = {}
    for index, unit_groups in enumerate((*groups, UnitGroups(root))):
        same_as = first.setdefault(id(unit_groups), index)
        if same_as < index:
            patterns.append(same_as)
            continue
        pattern, numbers = _group_numbers(unit_groups)
        largest = max(
            largest,
            *(group.all_gather_output for group in unit_groups),
            *(group.reduce_scatter_input for group in unit_groups),
        )
        patterns.append(pattern)
        sizes += numbers
        streams_of_fields = zip(STREAMS * len(pattern.one_buffer), pattern.present, strict=True)
        streams += [stream for stream, present in streams_of_fields if present]
    return GroupSizes(tuple(patterns), tuple(sizes), tuple(streams), largest)


def _group_numbers(groups: UnitGroups) -> tuple[GroupPattern, list[int]]:
    """Return the pattern of a unit's FSDP groups (which sizes are not zero), and these sizes in bytes.

    A size for the sharded gradient is left out where the reduce-scatter's output is that gradient.
    """
    sizes: list[int] = []
    one_buffer = [group.sharded_gradients == group.reduce_scatter_output for group in groups]
    for group, is_one_buffer in zip(groups, one_buffer, strict=True):
        sizes += group._replace(sharded_gradients=0) if is_one_buffer else group
    pattern = GroupPattern(tuple([n_bytes != 0 for n_bytes in sizes]), tuple(one_buffer))
    return pattern, [n_bytes for n_bytes in sizes if n_bytes]


class OutsideSizes(Record):
    """The sizes of a step outside its units and FSDP groups, such as masks and pipeline buffers."""

    present: tuple[Presence, ...]
    """Which sizes are not zero, for each pipeline chunk; one entry for a rank that is one stage."""
    sizes: tuple[int, ...]
    """Sizes in bytes that are not zero, followed by those of the strategy's own buffers."""


def outside_sizes(step_sizes: Sequence[StepSizes], strategy_sizes: tuple[int, ...] = ()) -> OutsideSizes:
    """Split what a step holds outside its units into a pattern and sizes in bytes; :func:`_named_sizes` reads them.

    ``step_sizes``: one entry per pipeline chunk. ``strategy_sizes``: sizes of the strategy's own buffers.
    """
    present: list[Presence] = []
    sizes: list[int] = []
    for chunk in step_sizes:
        exchange = chunk.exchange
        edges = (exchange.input_gradient, exchange.unsent_output, exchange.output_gradient)
        waiting = (chunk.embedded_rows, chunk.embedded_rows_gradient, chunk.feature_hidden_states)
        values = (
            chunk.per_micro_batch,
            *edges,
            chunk.table_gradient,
            chunk.table_gradient_slice,
            chunk.masks,
            *waiting,
            *chunk.held_by_others,
        )
        present.append(tuple([bool(n) for n in values]))
        sizes += [n for n in values if n]
    return OutsideSizes(tuple(present), (*sizes, *strategy_sizes))


class RankProgram:
    """A rank's step with the sizes of its units; the sizes of its FSDP groups are given to :meth:`peak`."""

    __slots__ = ("_groups", "_options", "_outside", "_runs", "_sizes")

    def __init__(self, options: StepOptions, runs: RunSizes, outside: OutsideSizes) -> None:
        self._options, self._runs, self._outside = options, runs, outside.present
        self._sizes = (*runs.sizes, *outside.sizes)  # in a row, as `recorded` gives out their places
        self._groups: dict[tuple[GroupPattern | int, ...], tuple[Program, Sequence[int]]] = {}

    def peak(self, groups: GroupSizes) -> StepPeaks:
        """Evaluate the step with the sizes of these FSDP groups; return the peak in bytes at each instant."""
        known = self._groups.get(groups.patterns)
        if known is None:
            program = recorded(self._options, self._runs.patterns, self._outside, groups.patterns)
            known = self._groups[groups.patterns] = (program, program.units(self._sizes))
        program, totals = known
        if not groups.patterns:
            return StepPeaks(Evaluated(program, totals, (self._sizes,)), self._runs)
        both = program.with_groups(totals, groups.sizes)
        return StepPeaks(Evaluated(program, both, (self._sizes, groups.sizes)), self._runs, (totals, groups))


class StepPeaks:
    """A rank's step without the resident bytes: the highest moment of each instant."""

    __slots__ = ("_evaluated", "_grouped", "_runs", "tops")

    def __init__(
        self, evaluated: Evaluated, runs: RunSizes, grouped: tuple[Sequence[int], GroupSizes] | None = None
    ) -> None:
        """Take the ``evaluated`` step of a rank: its recorded program with the bytes of every instant.

        ``runs``: sizes of its units. ``grouped``: bytes of every instant without FSDP's groups, and the sizes of these
        groups; None without groups.
        """
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
        largest_of_units = max([high.largest_block for high in self._runs.peaks], default=0)
        return largest_of_units if self._grouped is None else max(largest_of_units, self._grouped[1].largest)

    def stream_tops(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Return each instant and its bytes on the default stream, then on the streams of FSDP2's collectives.

        The result is empty for a step without FSDP groups.
        """
        if self._grouped is None:
            return ()
        totals, groups = self._grouped
        tops = []
        for stream in (DEFAULT_STREAM, GATHERS, REDUCES):
            sizes = [
                size if allocating_stream == stream else 0
                for size, allocating_stream in zip(groups.sizes, groups.streams, strict=True)
            ]
            tops.append(self.program.tops(totals if stream == DEFAULT_STREAM else None, tuple(sizes)))
        return tuple(tops)

    def moment(self, index: int) -> Moment:
        """Return one instant with its operation and its bytes by component.

        ``index``: number of the instant. Layers get their numbers in the model, not on the rank.
        """
        text = self._evaluated.mark(index).operation
        if self._runs.first_layer:
            import re

            text = re.sub(LAYER, lambda match: f"layer {int(match[1]) + self._runs.first_layer}", text)
        high = self.high(index)
        return self._evaluated.moment(index, text if high is None else f"{high.label} in {text}")

    def high(self, index: int) -> Peak | None:
        """Return the peak of the unit that runs at an instant's highest moment; None if no unit runs then."""
        number = self._evaluated.mark(index).unit_peak.peak_number
        return None if number < 0 else self._runs.peaks[number]


@lru_cache(maxsize=4096)
def recorded(
    options: StepOptions,
    patterns: tuple[RunPattern, ...],
    outside: tuple[Presence, ...],
    groups: tuple[GroupPattern | int, ...],
) -> Program:
    """Record a rank's step as a program of allocations, from patterns (which sizes are not zero) without any bytes.

    Each size gets an index, in the order of :class:`RankProgram`'s sizes: memory curves run by run (``patterns``), then
    sizes outside units (``outside``), then FSDP groups (``groups``). Equal patterns share the program, which is
    evaluated with the bytes of each rank.
    """
    # number the sizes of the memory curves
    size_index, high = 1, 0
    runs: list[NamedRun] = []
    for pattern in patterns:
        name = NAMES.get(pattern.kind) or f"{NUMBERED[pattern.kind]} {pattern.first_layer}"
        if pattern.same_as < len(runs):
            unit = runs[pattern.same_as].unit._replace(name=name)
        else:
            first_curve, size_index, high = named_curve(pattern.first_pattern, size_index, high)
            later_curve = first_curve
            if pattern.later_pattern >= 0:
                later_curve, size_index, high = named_curve(pattern.later_pattern, size_index, high)
            unit = NamedUnit(
                pattern.kind, name, first_curve, later_curve, pattern.reduced_by_loss, pattern.frozen_and_recomputed
            )
        runs.append(NamedRun(unit, pattern.times, pattern.first_layer))
    # number the sizes outside units, then those of the FSDP groups
    step_sizes: list[StepSizes] = []
    for present in outside:
        step_sizes.append(_named_sizes(present, size_index))
        size_index += sum(present)
    own_sizes, size_index = size_index, size_index + options.strategy.sizes
    units = size_index - 1
    named_groups: list[UnitGroups] = []
    for group_pattern in groups:
        if isinstance(group_pattern, int):
            named_groups.append(named_groups[group_pattern])
            continue
        named_groups.append(_named_groups(group_pattern, size_index))
        size_index += sum(group_pattern.present)
    unit_groups, root = [NO_UNIT_GROUPS] * len(runs), NO_GROUP
    if groups:
        unit_groups, root = named_groups[:-1], named_groups[-1].whole
    # record the step: interleaved pipeline stages, pairs of micro-batches, or one stage
    recorder = Recorder()
    if options.schedule.chunk_passes:
        from memcheck.frameworks.torch.interleaved import record_chunks

        record_chunks(options, runs, unit_groups, root, step_sizes, recorder, own_sizes)
        return recorder.program(units)
    step_type = Step
    if options.schedule.two_passes_per_backward:
        step_type = PairedStep
    elif options.lifetimes.ddp_sink_has_tower:
        runs = kept_by_ddp_sink(runs)
    step_units = StepUnits(runs, unit_groups, root, step_sizes[0])
    step_type(options, step_units, recorder, options.strategy.hooks(recorder, step_units, own_sizes)).run()
    return recorder.program(units)


def _named_groups(pattern: GroupPattern, first: int) -> UnitGroups:
    """Return the groups of a unit with indices of sizes from ``first`` on; the inverse of :func:`_group_numbers`."""
    row = places(pattern.present, first)
    groups = []
    for index, one_buffer in enumerate(pattern.one_buffer):
        group = Group(*row[FIELDS * index : FIELDS * (index + 1)])
        groups.append(group._replace(sharded_gradients=group.reduce_scatter_output) if one_buffer else group)
    return UnitGroups(*groups)


def _named_sizes(present: Presence, first: int) -> StepSizes:
    """Return the sizes outside units as places from ``first`` on; the order is that of :func:`outside_sizes`."""
    own, arriving, unsent, leaving, table, slice_, masks, rows, rows_gradient, features, *held = places(present, first)
    exchange = StageExchange(input_gradient=arriving, unsent_output=unsent, output_gradient=leaving)
    return StepSizes(own, tuple(held), exchange, table, slice_, masks, rows, rows_gradient, features)


def places(present: Presence, first: int) -> list[int]:
    """Return an index for each size, counted from ``first``; NOTHING for a size that is zero."""
    following = accumulate((int(exists) for exists in present), initial=first)
    return [size_index if exists else NOTHING for exists, size_index in zip(present, following, strict=False)]


def kept_by_ddp_sink(runs: Sequence[NamedRun]) -> list[NamedRun]:
    """Return the runs with the graphs of layers that no loss reads (``idle``) kept alive to the end of backward.

    With ``find_unused_parameters`` DDP passes all tensors of the model's output through ``_DDPSink``. So such a graph
    lives as long as the loss's own (torch 2.13 nn/parallel/distributed.py).
    """
    kept_runs = []
    for run in runs:
        unit = run.unit
        if unit.kind == "idle":
            unit = unit._replace(
                first_curve=unit.first_curve._replace(until_backward_ends=unit.first_curve.extra_output_bytes),
                later_curve=unit.later_curve._replace(until_backward_ends=unit.later_curve.extra_output_bytes),
            )
        kept_runs.append(run._replace(unit=unit))
    return kept_runs
