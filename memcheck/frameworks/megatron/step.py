"""One steady step of a Megatron rank, recorded for all sizes: the schedule's passes, each unit by unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from math import inf

from memcheck.accounts.program import NOTHING, Evaluated, Program, Recorder, layer_groups
from memcheck.accounts.ranks import Components, Moment
from memcheck.accounts.sizes import NamedCurve, named_curve, sizes_of
from memcheck.accounts.unit import Unit
from memcheck.autograd.curve import Peak
from memcheck.frameworks.megatron.counted import runs_of
from memcheck.frameworks.megatron.fsdp import Extra
from memcheck.frameworks.megatron.schedule import WARM_INPUT, InFlight, PassRun, candidates
from memcheck.record import Record


class Rank(Record):
    """What a rank runs and holds."""

    chunks: tuple[tuple[Unit, ...], ...]
    always: Components
    """Persistent side buffers."""
    forward_only: int
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
    """Whether :data:`WARM_INPUT` waits."""
    exchanged: int = 0
    """Number of further boundary tensors, each of ``held_input`` bytes, that are live during a backward of several
    chunks: the output of the last forward and the input of the next one.
    """
    extras: tuple[tuple[Extra, ...], ...] = ()
    """Per chunk and unit: what Megatron-FSDP gathers and keeps around the unit."""


class UnitsForm(Record):
    """Consecutive units that are alike, without their sizes."""

    kind: str
    curve: int
    """Number of the form of their curve."""
    extra: tuple[bool, bool]
    """Which sizes of :class:`Extra` are not zero."""
    of: int
    """The units of the rank, run by run, whose sizes these are."""
    times: int


class RankForm(Record):
    """A rank without its sizes."""

    chunks: tuple[tuple[UnitsForm, ...], ...]
    edges: tuple[bool, ...]
    """Which of the sizes of :class:`_Edges` are not zero."""
    keeps_warm_input: bool
    exchanged: int
    saves: bool
    """Every chunk keeps something of a micro-batch in flight."""


class ScheduleProgram(Record):
    """The record of a step, and the passes that its moments belong to."""

    program: Program
    in_flight: tuple[InFlight, ...]


class SchedulePeaks:
    """A rank's step without the resident bytes: the highest moment of each instant."""

    __slots__ = ("_ceiling", "_highs", "_in_flight", "_known", "_name", "_rank", "_schedule")

    def __init__(
        self, rank: Rank, schedule: tuple[PassRun, ...], name: Callable[[int, int], str] | None = None
    ) -> None:
        """``name``: of the unit at a place of a chunk, if it has another. Nothing is recorded before somebody asks."""
        self._rank, self._schedule, self._name = rank, schedule, name
        self._known: Evaluated | None = None
        self._ceiling: float | None = None

    @property
    def _evaluated(self) -> Evaluated:
        if self._known is None:
            form, sizes, self._highs = _form(self._rank)
            found = recorded(form, self._schedule)
            self._known = Evaluated(found.program, found.program.units(sizes), (sizes,))
            self._in_flight = found.in_flight
        return self._known

    @property
    def tops(self) -> tuple[tuple[str, int], ...]:
        """Each instant and its bytes."""
        return self._evaluated.tops

    @property
    def ceiling(self) -> float:
        """Bytes that no instant exceeds, which takes less than recording the step."""
        if self._ceiling is None:
            self._ceiling = ceiling(self._rank, self._schedule)
        return self._ceiling

    def moment(self, index: int) -> Moment:
        """One instant with its components."""
        where = self._evaluated.mark(index).operation
        high = self.high(index)
        if high is not None:
            _, chunk, unit = map(int, where.split())
            name = self._rank.chunks[chunk][unit].name if self._name is None else self._name(chunk, unit)
            where = f"{high.label} in {name}"
        return self._evaluated.moment(index, where)

    def high(self, index: int) -> Peak | None:
        """The unit's highest point that an instant's is, if it is one."""
        number = self._evaluated.mark(index).top.high
        return None if number < 0 else self._highs[number]

    def pass_at(self, index: int) -> InFlight:
        """The pass in which an instant is highest. It must be one of forward, loss and backward."""
        return self._in_flight[int(self._evaluated.mark(index).operation.split()[0])]


def ceiling(rank: Rank, schedule: tuple[PassRun, ...]) -> float:
    """Bytes that no instant of a step exceeds: all that can be live during a pass, and the pass on its own.

    There is none where Megatron-FSDP gathers around units.
    """
    if rank.extras:
        return inf
    passes = [_alone(units) for units in rank.chunks]
    saved = [each[0] + rank.cached_output for each in passes]
    now = most = 0
    for forward, backward, times in schedule:
        gained = 0 if forward is None else saved[forward]
        step = gained - (0 if backward is None else saved[backward])
        if forward is not None:
            most = max(most, max(now, now + (times - 1) * step) + passes[forward][1])
        if backward is not None:
            most = max(most, max(now + step, now + times * step) + passes[backward][2])
        now += times * step
    idle = sum([each[3] + 2 * rank.held_input for each in passes])
    edges = rank.input_gradient + rank.output_gradient + rank.forward_only + rank.cached_output
    return most + idle + edges + (3 + rank.exchanged) * rank.held_input


def _alone(units: Sequence[Unit]) -> tuple[int, int, int, int]:
    """What a chunk saves, the highest points of its forward and of its backward, and what it keeps idle, at most."""
    live = forward = backward = lingers = 0
    for unit in units:
        forward = max(forward, live + unit.fresh.forward.bytes)
        live += unit.fresh.saved + unit.fresh.until_forward_ends
    live = saved = sum([unit.fresh.saved for unit in units])
    for unit in reversed(units):
        live -= unit.fresh.saved
        backward = max(backward, live + unit.fresh.backward.bytes)
        live += unit.fresh.gradients + unit.fresh.lingers
        lingers += unit.fresh.lingers
    return saved, forward, backward, lingers


def _form(rank: Rank) -> tuple[RankForm, tuple[int, ...], tuple[Peak, ...]]:
    """A rank apart from its sizes, these in the order in which :func:`recorded` gives out places, and its curves'
    highest points.
    """
    first: dict[tuple[int, Extra], int] = {}
    sizes: list[int] = []
    highs: list[Peak] = []
    chunks: list[tuple[UnitsForm, ...]] = []
    number = 0
    saves = True
    for index, units in enumerate(rank.chunks):
        forms: list[UnitsForm] = []
        saved = rank.cached_output
        for unit, extra, times in _in_a_row(units, rank.extras[index] if rank.extras else None):
            of = first.setdefault((id(unit.fresh), extra), number)
            curve = sizes_of(unit.fresh)
            forms.append(UnitsForm(unit.kind, curve.form, (bool(extra.forward), bool(extra.backward)), of, times))
            if of == number:
                sizes += [*curve.numbers, *[n for n in extra if n]]
                highs += curve.highs
            saved += unit.fresh.saved
            number += 1
        saves &= saved > 0
        chunks.append(tuple(forms))
    edges = (rank.forward_only, rank.input_gradient, rank.output_gradient, rank.cached_output, rank.held_input)
    sizes += [n for n in edges if n]
    form = RankForm(tuple(chunks), tuple([bool(n) for n in edges]), rank.keeps_warm_input, rank.exchanged, saves)
    return form, tuple(sizes), tuple(highs)


def _in_a_row(units: Sequence[Unit], extras: Sequence[Extra] | None) -> list[tuple[Unit, Extra, int]]:
    """Consecutive units that compute the same and have the same extras: the first one, and how many they are."""
    if extras is None:
        every = [(unit, NO_EXTRA, times) for unit, times in runs_of(units)]
    else:
        every = [(unit, extra, 1) for unit, extra in zip(units, extras, strict=True)]
    rows = [list(same) for _, same in groupby(every, key=lambda row: (id(row[0].fresh), row[1]))]
    return [(*same[0][:2], sum([times for _, _, times in same])) for same in rows]


NO_EXTRA = Extra(0, 0)


class _NamedUnits(Record):
    """Units that are alike, with the places of their sizes."""

    kind: str
    curve: NamedCurve
    extra: Extra
    times: int


class _Edges(Record):
    """Places of what a rank exchanges and gets."""

    forward_only: int
    input_gradient: int
    output_gradient: int
    cached_output: int
    held_input: int
    receives: tuple[bool, ...]
    """Which chunks get an input from another one."""
    keeps_warm_input: bool
    exchanged: int


@lru_cache(maxsize=2048)
def recorded(form: RankForm, schedule: tuple[PassRun, ...]) -> ScheduleProgram:
    """The record of a step: every pass at each moment of the schedule at which it can be the fullest."""
    place, high = 1, 0
    named: list[_NamedUnits] = []
    chunks: list[list[_NamedUnits]] = []
    for forms in form.chunks:
        chunks.append([])
        for kind, curve_form, extra, of, times in forms:
            if of < len(named):
                curve, around = named[of].curve, named[of].extra
            else:
                curve, place, high = named_curve(curve_form, place, high)
                around = Extra(place if extra[0] else NOTHING, place + extra[0] if extra[1] else NOTHING)
                place += sum(extra)
            named.append(_NamedUnits(kind, curve, around, times))
            chunks[-1].append(named[-1])
    places = accumulate(form.edges, initial=place)
    receives = tuple([not units or units[0].kind != "embedding" for units in chunks])
    at = [place if there else NOTHING for there, place in zip(form.edges, places, strict=False)]
    edges = _Edges(at[0], at[1], at[2], at[3], at[4], receives, form.keeps_warm_input, form.exchanged)
    # what Megatron-FSDP gathers for the next step after its optimizer (distrib_optimizer.py, step_with_ready_grads)
    gathered = [units[0].extra.forward for units in chunks if units]
    alike: dict[tuple[UnitsForm, ...], int] = {}
    kinds = tuple([alike.setdefault(forms, index) for index, forms in enumerate(form.chunks)])
    recorder = Recorder()
    _hold_idle(recorder, chunks, edges, kinds)
    for first in gathered:
        recorder.hold("communication_buffers", first)
    recorder.mark("init", "states at rest")
    recorder.repeat(0, -1)
    moments = candidates(schedule, kinds, form.saves)
    passed: dict[int, list[_Stretch]] = {}
    for index, moment in enumerate(moments):
        before, chunk = recorder.here, moment.of.chunk
        _hold_in_flight(recorder, chunks, kinds, edges, moment)
        like = kinds[chunk]
        if like not in passed:
            passed[like] = _each(chunks[like])
        (_forward if moment.of.forward else _backward)(recorder, chunks[chunk], passed[like], f"{index} {chunk}")
        recorder.repeat(before, -1)
    _hold_idle(recorder, chunks, edges, kinds)
    for first in gathered:
        recorder.hold("communication_buffers", first)
    recorder.mark("optimizer", "optimizer step")
    return ScheduleProgram(recorder.program(place + sum(form.edges)), moments)


def _hold_in_flight(
    recorder: Recorder, chunks: list[list[_NamedUnits]], kinds: Sequence[int], edges: _Edges, moment: InFlight
) -> None:
    """Hold what is live during a pass.

    The graph of the backward before a forward of the only chunk lives until its output's variable is overwritten, and
    its leaf is that backward's input.
    """
    if not moment.first:
        idle = [i for i, count in enumerate(moment.counts) if not count and i != moment.of.chunk]
        _hold_idle(recorder, chunks, edges, [kinds[i] for i in idle])
    if moment.waits == WARM_INPUT and edges.keeps_warm_input:
        recorder.hold("communication_buffers", edges.held_input, 2)
    if not moment.of.forward:
        recorder.hold("communication_buffers", edges.held_input, edges.exchanged)
        if _sends_on(chunks[moment.of.chunk]):
            recorder.hold("activations", edges.cached_output)  # of the micro-batch that passes
    elif len(chunks) == 1 and not moment.first:
        recorder.hold("communication_buffers", edges.held_input)
    counts: dict[int, int] = {}
    for kind, count in zip(kinds, moment.counts, strict=True):
        if count:
            counts[kind] = counts.get(kind, 0) + count
    for kind, count in counts.items():
        for units in chunks[kind]:
            recorder.hold_bundle(units.curve.saved, count * units.times)
        if _sends_on(chunks[kind]):
            recorder.hold("activations", edges.cached_output, count)
    if not moment.first:
        recorder.hold("communication_buffers", edges.input_gradient)
        if moment.of.forward:
            recorder.hold("communication_buffers", edges.output_gradient)
    if moment.of.forward:
        recorder.hold("activations", edges.forward_only)


def _sends_on(chunk: Sequence[_NamedUnits]) -> bool:
    """Whether another chunk gets what it gives out."""
    return bool(chunk) and chunk[-1].kind in ("embedding", "block")


def _hold_idle(recorder: Recorder, chunks: Sequence[Sequence[_NamedUnits]], edges: _Edges, idle: Sequence[int]) -> None:
    """What chunks with nothing in flight, by kind, keep of their last pass: input and its gradient, what lingers."""
    for kind in dict.fromkeys(idle):
        times = idle.count(kind)
        if edges.receives[kind]:
            recorder.hold("communication_buffers", edges.held_input, 2 * times)
        for units in chunks[kind]:
            if units.kind == "block":
                recorder.hold("temporaries", units.curve.lingers, units.times * times)


def _forward(recorder: Recorder, chunk: Sequence[_NamedUnits], each: list[_Stretch], where: str) -> None:
    """A forward through one chunk. ``where``: the numbers of the moment and of the chunk."""
    for index, end, units in each:
        before = recorder.here
        recorder.hold("communication_buffers", units.extra.forward)
        instant = "forward" if units.kind in ("embedding", "block") else "loss"
        recorder.high(instant, units.curve.forward, f"{where} {index}")
        recorder.release("communication_buffers", units.extra.forward)
        recorder.hold_bundle(units.curve.saved)
        recorder.hold("activations", units.curve.until_forward_ends)
        recorder.repeat(before, end - index - 1)
    for units in chunk:
        recorder.release("activations", units.curve.until_forward_ends, units.times)


def _backward(recorder: Recorder, chunk: Sequence[_NamedUnits], each: list[_Stretch], where: str) -> None:
    """A backward through one chunk, whose forward has kept its tensors. ``where``: as of a forward."""
    for units in chunk:
        recorder.hold_bundle(units.curve.saved, units.times)
    for index, end, units in reversed(each):
        before = recorder.here
        recorder.hold_bundle(units.curve.saved, -1)
        recorder.hold("communication_buffers", units.extra.backward)
        recorder.high("backward", units.curve.backward, f"{where} {end - 1}")
        recorder.release("communication_buffers", units.extra.backward)
        recorder.hold("gradients", units.curve.gradients)
        recorder.hold("temporaries", units.curve.lingers)
        recorder.repeat(before, end - index - 1)


_Stretch = tuple[int, int, _NamedUnits]


def _each(chunk: Sequence[_NamedUnits]) -> list[_Stretch]:
    """The units of a chunk as stretches [from, to), with what is the same of all of a stretch."""
    every = [units for units in chunk for _ in range(units.times)]
    return [(first, end, every[first]) for first, end in layer_groups([units.times for units in chunk])]
