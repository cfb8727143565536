"""One steady step of a Megatron rank, recorded for all sizes: the schedule's passes, each unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import inf

from memcheck.accounts.program import (
    NOTHING,
    Evaluated,
    NamedCurve,
    Program,
    Recorder,
    layer_groups,
    named_curve,
    sizes_of,
)
from memcheck.accounts.ranks import Components, Moment, Unit
from memcheck.autograd.curve import Peak
from memcheck.frameworks.megatron.buffers import runs_of
from memcheck.frameworks.megatron.fsdp import Extra
from memcheck.frameworks.megatron.schedule import WARM_INPUT, InFlight, PassRun, candidates
from memcheck.record import Record


class Rank(Record):
    """What a pipeline rank runs, and the sizes in bytes of what it exchanges and keeps."""

    chunks: tuple[tuple[Unit, ...], ...]
    """Units of each model chunk, in forward order."""
    always_held: Components
    """Persistent side buffers."""
    forward_only_bytes: int
    """Bytes of the batch that live during a forward (the dense attention mask)."""
    input_gradient: int
    """The last input gradient: its variable outlives the send until the next backward."""
    output_gradient: int
    """The last output gradient, referenced until the next one has been received."""
    cached_output: int
    """Output that a chunk sends on, kept per micro-batch in flight; 0 when outputs are deallocated after the send."""
    held_input: int = 0
    """What a chunk gets from the stage before: it and its gradient outlive the backward, until the chunk's next input
    (``set_input_tensor``)."""
    keeps_warm_input: bool = False
    """Whether the input of the last warm-up forward stays alive: see :data:`WARM_INPUT`."""
    exchanged_tensors: int = 0
    """Number of further boundary tensors, each of ``held_input`` bytes, that are live during a backward of several
    chunks: the output of the last forward and the input of the next one.
    """
    extras: tuple[tuple[Extra, ...], ...] = ()
    """Per chunk and unit: what Megatron-FSDP gathers and keeps around the unit."""


class UnitsPattern(Record):
    """Equal consecutive units without their sizes: only which sizes are not zero."""

    kind: str
    curve_number: int
    """Number of their memory curve's :class:`memcheck.accounts.program.CurvePattern`."""
    extra: tuple[bool, bool]
    """Which sizes of :class:`Extra` are not zero."""
    same_as: int
    """Index of the rank's first group of units with the same sizes; the group's own index if it is the first."""
    times: int
    """Number of the units."""


class RankPattern(Record):
    """A rank without its sizes: only which sizes are not zero. Ranks of equal pattern share one recorded step."""

    chunks: tuple[tuple[UnitsPattern, ...], ...]
    """Groups of equal units of each model chunk, in forward order."""
    edges: tuple[bool, ...]
    """Which of the sizes of :class:`_Edges` are not zero."""
    keeps_warm_input: bool
    """See :attr:`Rank.keeps_warm_input`."""
    exchanged_tensors: int
    """See :attr:`Rank.exchanged_tensors`."""
    every_chunk_saves: bool
    """Every chunk keeps something of a micro-batch in flight."""


class ScheduleProgram(Record):
    """The record of a step, and the passes that its moments belong to."""

    program: Program
    in_flight: tuple[InFlight, ...]


class _EvaluatedStep(Record):
    """A rank's recorded step with the bytes of that rank."""

    evaluated: Evaluated
    """Every instant with its bytes."""
    unit_peaks: tuple[Peak, ...]
    """The highest points of the units, by the numbers that the record gives them."""
    in_flight: tuple[InFlight, ...]
    """The passes that the instants belong to."""


class SchedulePeaks:
    """Finds the peak of each instant of a rank's step, without the resident bytes."""

    __slots__ = ("_ceiling", "_name", "_rank", "_recorded_step", "_schedule")

    def __init__(
        self, rank: Rank, schedule: tuple[PassRun, ...], name: Callable[[int, int], str] | None = None
    ) -> None:
        """Take a rank and its passes in order; the step is recorded when a peak is first asked for.

        ``name``: returns the name of a unit from the indices of its chunk and of the unit; None: the unit's own name.
        """
        self._rank, self._schedule, self._name = rank, schedule, name
        self._recorded_step: _EvaluatedStep | None = None
        self._ceiling: float | None = None

    @property
    def _step(self) -> _EvaluatedStep:
        """The recorded step with this rank's sizes; computed when first used, then cached."""
        if self._recorded_step is None:
            pattern, sizes, unit_peaks = _pattern_and_sizes(self._rank)
            program, in_flight = recorded(pattern, self._schedule)
            evaluated = Evaluated(program, program.units(sizes), (sizes,))
            self._recorded_step = _EvaluatedStep(evaluated, unit_peaks, in_flight)
        return self._recorded_step

    @property
    def tops(self) -> tuple[tuple[str, int], ...]:
        """Each instant and its bytes."""
        return self._step.evaluated.tops

    @property
    def ceiling(self) -> float:
        """Bytes that no instant exceeds, which takes less than recording the step."""
        if self._ceiling is None:
            self._ceiling = ceiling(self._rank, self._schedule)
        return self._ceiling

    def moment(self, index: int) -> Moment:
        """Return one instant with its bytes per component and the operation that runs then."""
        evaluated = self._step.evaluated
        operation = evaluated.mark(index).operation
        unit_peak = self.high(index)
        if unit_peak is not None:
            _, chunk, unit = map(int, operation.split())
            name = self._rank.chunks[chunk][unit].name if self._name is None else self._name(chunk, unit)
            operation = f"{unit_peak.label} in {name}"
        return evaluated.moment(index, operation)

    def high(self, index: int) -> Peak | None:
        """Return the highest point of the unit that runs at an instant, or None where no unit runs."""
        number = self._step.evaluated.mark(index).unit_peak.peak_number
        return None if number < 0 else self._step.unit_peaks[number]

    def pass_at(self, index: int) -> InFlight:
        """Return the pass that runs at an instant's peak; the instant must be one of forward, loss and backward."""
        return self._step.in_flight[int(self._step.evaluated.mark(index).operation.split()[0])]


def ceiling(rank: Rank, schedule: tuple[PassRun, ...]) -> float:
    """Return an upper bound, in bytes, of every instant of a pipeline rank's step, without recording the step.

    It adds up the saved tensors of all micro-batches in flight, the peak of the running pass, and the largest other
    tensors. ``schedule``: the rank's passes in order. Infinite under Megatron-FSDP, which gathers parameters.
    """
    if rank.extras:
        return inf
    chunk_bytes = [_chunk_bytes(units) for units in rank.chunks]
    in_flight = highest = 0
    for forward, backward, times in schedule:
        # `in_flight` changes by a constant each time: the first or the last repetition is the highest
        change = 0
        if forward is not None:
            change += chunk_bytes[forward].saved + rank.cached_output
        if backward is not None:
            change -= chunk_bytes[backward].saved + rank.cached_output
        if forward is not None:
            most_in_flight = max(in_flight, in_flight + (times - 1) * change)
            highest = max(highest, most_in_flight + chunk_bytes[forward].forward_peak)
        if backward is not None:
            most_in_flight = max(in_flight + change, in_flight + times * change)
            highest = max(highest, most_in_flight + chunk_bytes[backward].backward_peak)
        in_flight += times * change
    kept_bytes = sum([chunk.kept_between_passes + INPUT_AND_GRADIENT * rank.held_input for chunk in chunk_bytes])
    boundary_bytes = rank.input_gradient + rank.output_gradient + rank.forward_only_bytes + rank.cached_output
    # inputs that variables hold: the warm-up's with its gradient, and that of the last backward's graph
    held_inputs = INPUT_AND_GRADIENT + 1 + rank.exchanged_tensors
    return highest + kept_bytes + boundary_bytes + held_inputs * rank.held_input


INPUT_AND_GRADIENT = 2
"""Tensors of the size of a received input: the input itself and its gradient."""


class _ChunkBytes(Record):
    """Bytes of a model chunk for one micro-batch. All but ``saved`` are upper bounds."""

    saved: int
    """Tensors that are saved for backward."""
    forward_peak: int
    """Most live bytes in the chunk's forward."""
    backward_peak: int
    """Most live bytes in the chunk's backward."""
    kept_between_passes: int
    """Bytes that stay when the backward is over (``Curve.until_backward_ends``)."""


def _chunk_bytes(units: Sequence[Unit]) -> _ChunkBytes:
    """Add up the bytes of a model chunk in its forward and backward, for :func:`ceiling`.

    ``units``: in forward order. Backward runs them in reverse, and frees what each has saved.
    """
    live = forward = backward = kept = 0
    for unit in units:
        forward = max(forward, live + unit.first_curve.forward_peak.bytes)
        live += unit.first_curve.saved_bytes + unit.first_curve.autocast_cache_bytes
    live = saved = sum([unit.first_curve.saved_bytes for unit in units])
    for unit in reversed(units):
        live -= unit.first_curve.saved_bytes
        backward = max(backward, live + unit.first_curve.backward_peak.bytes)
        live += unit.first_curve.gradient_bytes + unit.first_curve.until_backward_ends
        kept += unit.first_curve.until_backward_ends
    return _ChunkBytes(saved, forward, backward, kept)


def _pattern_and_sizes(rank: Rank) -> tuple[RankPattern, tuple[int, ...], tuple[Peak, ...]]:
    """Split a rank's step into its pattern (which terms are not zero), the terms' bytes, and the peaks of its units.

    Ranks of equal pattern share one recorded step, which is evaluated with the bytes of each. The bytes are in the
    order in which :func:`recorded` numbers them.
    """
    first_number: dict[tuple[int, Extra], int] = {}
    sizes: list[int] = []
    unit_peaks: list[Peak] = []
    chunks: list[tuple[UnitsPattern, ...]] = []
    unit_number = 0
    saves = True
    for index, units in enumerate(rank.chunks):
        patterns: list[UnitsPattern] = []
        saved = rank.cached_output
        for unit, extra, times in _group_equal_units(units, rank.extras[index] if rank.extras else None):
            same_as = first_number.setdefault((id(unit.first_curve), extra), unit_number)
            curve = sizes_of(unit.first_curve)
            patterns.append(
                UnitsPattern(
                    unit.kind, curve.pattern, (bool(extra.forward_bytes), bool(extra.backward_bytes)), same_as, times
                )
            )
            if same_as == unit_number:
                sizes += [*curve.numbers, *[n for n in extra if n]]
                unit_peaks += curve.peaks
            saved += unit.first_curve.saved_bytes
            unit_number += 1
        saves &= saved > 0
        chunks.append(tuple(patterns))
    boundary_sizes = (
        rank.forward_only_bytes,
        rank.input_gradient,
        rank.output_gradient,
        rank.cached_output,
        rank.held_input,
    )
    sizes += [n for n in boundary_sizes if n]
    pattern = RankPattern(
        tuple(chunks), tuple([bool(n) for n in boundary_sizes]), rank.keeps_warm_input, rank.exchanged_tensors, saves
    )
    return pattern, tuple(sizes), tuple(unit_peaks)


def _group_equal_units(units: Sequence[Unit], extras: Sequence[Extra] | None) -> list[tuple[Unit, Extra, int]]:
    """Group consecutive units with the same memory curve and the same extras, as (first unit, extras, count).

    ``extras``: what Megatron-FSDP adds to each unit; None: nothing.
    """
    if extras is None:
        counted_units = [(unit, NO_EXTRA, times) for unit, times in runs_of(units)]
    else:
        counted_units = [(unit, extra, 1) for unit, extra in zip(units, extras, strict=True)]
    grouped: list[tuple[Unit, Extra, int]] = []
    for unit, extra, times in counted_units:
        if grouped:
            first, extra_of_group, count = grouped[-1]
            if first.first_curve is unit.first_curve and extra_of_group == extra:
                grouped[-1] = first, extra, count + times
                continue
        grouped.append((unit, extra, times))
    return grouped


NO_EXTRA = Extra(0, 0)


class _UnitGroup(Record):
    """Equal units, with the indices of their sizes."""

    kind: str
    """The unit's kind, such as ``embedding``, ``block`` or ``head``."""
    curve: NamedCurve
    extra: Extra
    """Indices of the sizes that Megatron-FSDP adds in forward and backward."""
    times: int
    """Number of the units."""


class _Edges(Record):
    """Indices of the sizes of tensors that a rank exchanges with other stages or gets with the batch; fields as in
    :class:`Rank`.
    """

    forward_only: int
    input_gradient: int
    output_gradient: int
    cached_output: int
    held_input: int
    chunk_receives_input: tuple[bool, ...]
    """Which chunks get an input from another one."""
    keeps_warm_input: bool
    exchanged_tensors: int


@lru_cache(maxsize=2048)
def recorded(pattern: RankPattern, schedule: tuple[PassRun, ...]) -> ScheduleProgram:
    """Record a rank's step once for all ranks of this pattern: each pass where its memory can be highest.

    The record holds numbers of sizes, not bytes. Its instants are "init", then "forward", "loss" and "backward" of the
    passes, then "optimizer". Cached by pattern and schedule. ``candidates`` chooses the passes.
    """
    chunks, first_edge = _number_units(pattern)
    edges = _number_edges(pattern, chunks, first_edge)
    first_equal: dict[tuple[UnitsPattern, ...], int] = {}
    kinds = tuple([first_equal.setdefault(patterns, index) for index, patterns in enumerate(pattern.chunks)])
    ranges_of_kind = {kind: _unit_ranges(chunks[kind]) for kind in first_equal.values()}
    moments = candidates(schedule, kinds, pattern.every_chunk_saves)
    recorder = Recorder()
    _hold_between_steps(recorder, chunks, edges, kinds)
    recorder.mark("init", "states at rest")
    recorder.undo_since(0)
    for index, moment in enumerate(moments):
        before, chunk = recorder.here, moment.running_pass.chunk
        _hold_in_flight(recorder, chunks, kinds, edges, moment)
        record_pass = _forward if moment.running_pass.is_forward else _backward
        record_pass(recorder, chunks[chunk], ranges_of_kind[kinds[chunk]], f"{index} {chunk}")
        recorder.undo_since(before)
    _hold_between_steps(recorder, chunks, edges, kinds)
    recorder.mark("optimizer", "optimizer step")
    return ScheduleProgram(recorder.program(first_edge + sum(pattern.edges)), moments)


def _number_units(pattern: RankPattern) -> tuple[list[list[_UnitGroup]], int]:
    """Number the sizes of a rank's units, from 1 on in the order of the chunks, and return the first free number.

    Groups of units with the same sizes share their numbers. The groups are returned chunk by chunk.
    """
    next_size, next_peak = 1, 0
    unit_groups: list[_UnitGroup] = []
    chunks: list[list[_UnitGroup]] = []
    for patterns in pattern.chunks:
        chunks.append([])
        for units in patterns:
            if units.same_as < len(unit_groups):
                curve, extra = unit_groups[units.same_as].curve, unit_groups[units.same_as].extra
            else:
                curve, next_size, next_peak = named_curve(units.curve_number, next_size, next_peak)
                extra = Extra(*_numbered(units.extra, next_size))
                next_size += sum(units.extra)
            unit_groups.append(_UnitGroup(units.kind, curve, extra, units.times))
            chunks[-1].append(unit_groups[-1])
    return chunks, next_size


def _number_edges(pattern: RankPattern, chunks: list[list[_UnitGroup]], first: int) -> _Edges:
    """Number the sizes of tensors that pipeline stages exchange, from ``first`` on."""
    receives = tuple([not units or units[0].kind != "embedding" for units in chunks])
    forward_only, input_gradient, output_gradient, cached_output, held_input = _numbered(pattern.edges, first)
    return _Edges(
        forward_only=forward_only,
        input_gradient=input_gradient,
        output_gradient=output_gradient,
        cached_output=cached_output,
        held_input=held_input,
        chunk_receives_input=receives,
        keeps_warm_input=pattern.keeps_warm_input,
        exchanged_tensors=pattern.exchanged_tensors,
    )


def _numbered(present: Sequence[bool], first: int) -> list[int]:
    """Number the sizes that are present from ``first`` on; the others are :data:`NOTHING`."""
    numbers = accumulate(present, initial=first)
    return [number if is_present else NOTHING for is_present, number in zip(present, numbers, strict=False)]


def _hold_between_steps(
    recorder: Recorder, chunks: list[list[_UnitGroup]], edges: _Edges, kinds: Sequence[int]
) -> None:
    """Record what is live before the first and after the last pass: what idle chunks keep, and prefetched parameters.

    ``kinds``: as in ``candidates``. Megatron-FSDP gathers parameters of each chunk's first unit for the next step
    (distrib_optimizer.py, step_with_ready_grads).
    """
    _hold_idle(recorder, chunks, edges, kinds)
    for units in chunks:
        if units:
            recorder.hold("communication_buffers", units[0].extra.forward_bytes)


def _hold_in_flight(
    recorder: Recorder, chunks: list[list[_UnitGroup]], kinds: Sequence[int], edges: _Edges, moment: InFlight
) -> None:
    """Record what is live when a pass begins: saved tensors of micro-batches in flight, and tensors sent between
    stages.

    ``moment``: the pass, with the micro-batches in flight of each chunk. ``kinds``: as in ``candidates``. ``edges``:
    the tensors at the stage's ends.
    """
    if not moment.before_first_backward:
        idle = [
            i for i, count in enumerate(moment.micro_batches_by_chunk) if not count and i != moment.running_pass.chunk
        ]
        _hold_idle(recorder, chunks, edges, [kinds[i] for i in idle])
    if moment.phase == WARM_INPUT and edges.keeps_warm_input:  # the input that was received last in the warm-up
        recorder.hold("communication_buffers", edges.held_input, INPUT_AND_GRADIENT)
    if not moment.running_pass.is_forward:
        recorder.hold("communication_buffers", edges.held_input, edges.exchanged_tensors)
        if _sends_on(chunks[moment.running_pass.chunk]):
            recorder.hold("activations", edges.cached_output)  # of the micro-batch that passes
    elif len(chunks) == 1 and not moment.before_first_backward:
        # the last backward's graph lives until the variable of its output is assigned; its leaf is the received input
        recorder.hold("communication_buffers", edges.held_input)
    # saved activations of the micro-batches in flight; equal chunks are counted together
    counts: dict[int, int] = {}
    for kind, count in zip(kinds, moment.micro_batches_by_chunk, strict=True):
        if count:
            counts[kind] = counts.get(kind, 0) + count
    for kind, count in counts.items():
        for units in chunks[kind]:
            recorder.hold_components(units.curve.saved_bytes, count * units.times)
        if _sends_on(chunks[kind]):
            recorder.hold("activations", edges.cached_output, count)
    if not moment.before_first_backward:
        recorder.hold("communication_buffers", edges.input_gradient)
        if moment.running_pass.is_forward:
            recorder.hold("communication_buffers", edges.output_gradient)
    if moment.running_pass.is_forward:
        recorder.hold("activations", edges.forward_only)


def _sends_on(chunk: Sequence[_UnitGroup]) -> bool:
    """Whether the chunk sends its output to another chunk."""
    return bool(chunk) and chunk[-1].kind in ("embedding", "block")


def _hold_idle(recorder: Recorder, chunks: Sequence[Sequence[_UnitGroup]], edges: _Edges, idle: Sequence[int]) -> None:
    """Record what chunks without a micro-batch in flight keep of their last one: the received input and its gradient.

    ``idle``: the kind of each such chunk (as in ``candidates``). Layers may keep tensors until backward ends.
    """
    for kind in dict.fromkeys(idle):
        times = idle.count(kind)
        if edges.chunk_receives_input[kind]:
            recorder.hold("communication_buffers", edges.held_input, INPUT_AND_GRADIENT * times)
        for units in chunks[kind]:
            if units.kind == "block":
                recorder.hold("temporaries", units.curve.until_backward_ends, units.times * times)


def _forward(recorder: Recorder, chunk: Sequence[_UnitGroup], unit_ranges: list[_UnitRange], where: str) -> None:
    """Record a forward through one model chunk, unit by unit, with the peak of each.

    ``where``: the numbers of the candidate and of the chunk, in the label of each peak.
    """
    for index, end, units in unit_ranges:
        before = recorder.here
        recorder.hold("communication_buffers", units.extra.forward_bytes)
        instant = "forward" if units.kind in ("embedding", "block") else "loss"
        recorder.high(instant, units.curve.forward_peak, f"{where} {index}")
        recorder.release("communication_buffers", units.extra.forward_bytes)
        recorder.hold_components(units.curve.saved_bytes)
        # Megatron has no autocast: these are the embedding's output, which GPTModel.forward holds to its end
        recorder.hold("activations", units.curve.autocast_cache_bytes)
        recorder.repeat(before, end - index - 1)  # the other units of the range are the same
    for units in chunk:
        recorder.release("activations", units.curve.autocast_cache_bytes, units.times)


def _backward(recorder: Recorder, chunk: Sequence[_UnitGroup], unit_ranges: list[_UnitRange], where: str) -> None:
    """Record a backward through one model chunk, in reverse order; each unit frees what its forward has saved.

    ``where``: the numbers of the candidate and of the chunk, in the label of each peak.
    """
    for units in chunk:
        recorder.hold_components(units.curve.saved_bytes, units.times)
    for index, end, units in reversed(unit_ranges):
        before = recorder.here
        recorder.release_components(units.curve.saved_bytes)
        recorder.hold("communication_buffers", units.extra.backward_bytes)
        recorder.high("backward", units.curve.backward_peak, f"{where} {end - 1}")
        recorder.release("communication_buffers", units.extra.backward_bytes)
        recorder.hold("gradients", units.curve.gradient_bytes)
        recorder.hold("temporaries", units.curve.until_backward_ends)
        recorder.repeat(before, end - index - 1)  # the other units of the range are the same


_UnitRange = tuple[int, int, _UnitGroup]
"""Equal units in a row: the index of the first one in the chunk, that after the last one, and the units."""


def _unit_ranges(chunk: Sequence[_UnitGroup]) -> list[_UnitRange]:
    """Split the units of a chunk into ranges [first, end) of equal units."""
    all_units = [units for units in chunk for _ in range(units.times)]
    return [(first, end, all_units[first]) for first, end in layer_groups([units.times for units in chunk])]
