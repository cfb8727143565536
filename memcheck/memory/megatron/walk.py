"""One steady step of a Megatron rank on a timeline: the schedule's passes, each unit by unit."""

from __future__ import annotations

from memcheck.memory.megatron.fsdp import Extra
from memcheck.memory.megatron.schedule import Run
from memcheck.memory.moves import Components, Rest
from memcheck.memory.timeline import Timeline
from memcheck.memory.units import Unit
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
    """Output kept per micro-batch in flight; 0 when outputs are deallocated after the send."""
    extras: tuple[tuple[Extra, ...], ...] = ()
    """Per chunk and unit: what Megatron-FSDP gathers and keeps around the unit."""


NO_REST = Rest((), "optimizer step", 0)


def walk(rank: Rank, schedule: list[Run], rest: Rest = NO_REST) -> Timeline:
    """The account of one step. Only the fullest of the passes through the same chunk is walked."""
    timeline = Timeline()
    for component, n_bytes in (*rest.components, *rank.always):
        timeline.hold(component, n_bytes)
    timeline.mark("init", "states at rest")
    saved = [_saved(units) for units in rank.chunks]
    for a_pass, moment in sorted(fullest(rank, schedule).items(), key=lambda found: not found[0].forward):
        held = _held(rank, saved, moment, a_pass)
        timeline.hold_all(tuple(held.items()))
        units = rank.chunks[a_pass.chunk]
        around = rank.extras[a_pass.chunk] if rank.extras else (NOTHING,) * len(units)
        (_forward if a_pass.forward else _backward)(timeline, units, around)
        timeline.hold_all(tuple(held.items()), -1)
    timeline.hold("temporaries", rest.temporaries)
    timeline.mark("optimizer", rest.operation)
    timeline.release("temporaries", rest.temporaries)
    return timeline


class Pass(Record):
    """A micro-batch's way through one chunk."""

    forward: bool
    chunk: int


class Moment(Record):
    """What a rank holds beside a pass."""

    bytes: int
    counts: tuple[int, ...]
    """Micro-batches in flight, for each chunk; without the one that passes."""
    first: bool
    """There was no backward yet, so that no gradients wait."""


def fullest(rank: Rank, schedule: list[Run]) -> dict[Pass, Moment]:
    """For every pass its fullest moment, the first of equal ones.

    From one repetition of a run to the next the bytes change by a constant, and once more by the gradients that wait
    from the first backward on: so the maximum lies at its first, its second or its last repetition.
    """
    each = [sum(u.fresh.saved for u in units) + rank.cached_output for units in rank.chunks]
    counts = [0] * len(each)
    alive = 0
    waits = False
    found: dict[Pass, Moment] = {}

    def propose(a_pass: Pass, done: tuple[int, int], run: Run, *, first: bool) -> None:
        forwards, backwards = done
        total = alive
        total += forwards * each[run.forward] if run.forward is not None else 0
        total -= backwards * each[run.backward] if run.backward is not None else 0
        total += 0 if first else rank.input_gradient
        if a_pass.forward:
            total += rank.forward_only + (0 if first else rank.output_gradient)
        if a_pass not in found or total > found[a_pass].bytes:
            now = list(counts)
            if run.forward is not None:
                now[run.forward] += forwards
            if run.backward is not None:
                now[run.backward] -= backwards
            found.pop(a_pass, None)
            found[a_pass] = Moment(total, tuple(now), first)

    for run in schedule:
        for k in sorted({0, min(1, run.times - 1), run.times - 1}):
            gone = k if run.backward is not None else 0
            first = not waits and not gone
            if run.forward is not None:
                propose(Pass(True, run.forward), (k, gone), run, first=first)
            if run.backward is not None:
                propose(Pass(False, run.backward), (k + 1, k + 1), run, first=first)
        if run.forward is not None:
            counts[run.forward] += run.times
            alive += run.times * each[run.forward]
        if run.backward is not None:
            counts[run.backward] -= run.times
            alive -= run.times * each[run.backward]
            waits = True
    return found


def _held(rank: Rank, saved: list[Components], moment: Moment, a_pass: Pass) -> dict[str, int]:
    """What lives beside a pass, by component."""
    held: dict[str, int] = {}
    for chunk, n in enumerate(moment.counts):
        for component, n_bytes in saved[chunk]:
            held[component] = held.get(component, 0) + n * n_bytes
        held["activations"] = held.get("activations", 0) + n * rank.cached_output
    if not moment.first:
        held["communication_buffers"] = held.get("communication_buffers", 0) + rank.input_gradient
        if a_pass.forward:
            held["communication_buffers"] += rank.output_gradient
    if a_pass.forward:
        held["activations"] = held.get("activations", 0) + rank.forward_only
    return held


def _saved(units: tuple[Unit, ...]) -> Components:
    found: dict[str, int] = {}
    for u in units:
        for component, n_bytes in u.fresh.saved_components:
            found[component] = found.get(component, 0) + n_bytes
    return tuple(found.items())


NOTHING = Extra(0, 0)


def _forward(timeline: Timeline, units: tuple[Unit, ...], around: tuple[Extra, ...]) -> None:
    for u, extra in zip(units, around, strict=True):
        timeline.hold("communication_buffers", extra.forward)
        timeline.high("forward" if u.kind in ("embedding", "block") else "loss", u.fresh.forward, u.name)
        timeline.release("communication_buffers", extra.forward)
        timeline.hold_all(u.fresh.saved_components)
    for u in units:
        timeline.hold_all(u.fresh.saved_components, -1)


def _backward(timeline: Timeline, units: tuple[Unit, ...], around: tuple[Extra, ...]) -> None:
    for u in units:
        timeline.hold_all(u.fresh.saved_components)
    lingers = 0
    for u, extra in zip(reversed(units), reversed(around), strict=True):
        timeline.hold_all(u.fresh.saved_components, -1)
        timeline.hold("communication_buffers", extra.backward)
        timeline.high("backward", u.fresh.backward, u.name)
        timeline.release("communication_buffers", extra.backward)
        timeline.hold("temporaries", u.fresh.lingers)
        lingers += u.fresh.lingers
    timeline.release("temporaries", lingers)
