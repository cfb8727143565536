"""One steady step of a Megatron rank on a timeline: the schedule's events, each unit by unit."""

from __future__ import annotations

from operator import mul

from memcheck.memory.megatron.fsdp import Extra
from memcheck.memory.megatron.schedule import Event
from memcheck.memory.state import Resting
from memcheck.memory.timeline import Timeline
from memcheck.memory.units import Unit
from memcheck.record import Record

Components = tuple[tuple[str, int], ...]


class Rank(Record):
    """What a rank runs and holds."""

    chunks: tuple[tuple[Unit, ...], ...]
    resting: Resting
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
    step_temporaries: int
    extras: tuple[tuple[Extra, ...], ...] = ()
    """Per chunk and unit: what Megatron-FSDP gathers and keeps around the unit."""


def walk(rank: Rank, events: list[Event]) -> Timeline:
    """The account of one step. Only the fullest of the events that run the same chunk the same way is walked."""
    timeline = Timeline()
    r = rank.resting
    for component in ("parameters", "gradients", "master_weights", "optimizer_states"):
        timeline.hold(component, getattr(r, component))
    for component, n_bytes in rank.always:
        timeline.hold(component, n_bytes)
    timeline.mark("init", "states at rest")
    saved = [_saved(units) for units in rank.chunks]
    counts = [0] * len(rank.chunks)
    each = [sum(n_bytes for _, n_bytes in components) + rank.cached_output for components in saved]
    fullest: dict[Event, tuple[int, dict[str, int]]] = {}
    backwards = 0
    for event in events:
        if not event.forward:
            counts[event.chunk] -= 1
        total = sum(map(mul, counts, each)) + (rank.input_gradient if backwards else 0)
        if event.forward:
            total += rank.forward_only + (rank.output_gradient if backwards else 0)
        if event not in fullest or total > fullest[event][0]:
            fullest.pop(event, None)
            fullest[event] = total, _held(rank, saved, counts, event, first=not backwards)
        if event.forward:
            counts[event.chunk] += 1
        else:
            backwards += 1
    for event in sorted(fullest, key=lambda event: not event.forward):
        _, held = fullest[event]
        timeline.hold_all(tuple(held.items()))
        units = rank.chunks[event.chunk]
        around = rank.extras[event.chunk] if rank.extras else (NOTHING,) * len(units)
        (_forward if event.forward else _backward)(timeline, units, around)
        timeline.hold_all(tuple(held.items()), -1)
    timeline.hold("temporaries", rank.step_temporaries)
    timeline.mark("optimizer", "optimizer step")
    timeline.release("temporaries", rank.step_temporaries)
    return timeline


def _held(rank: Rank, saved: list[Components], counts: list[int], event: Event, *, first: bool) -> dict[str, int]:
    """What lives beside an event. ``first``: there was no backward yet, so that no gradients wait."""
    held: dict[str, int] = {}
    for chunk, n in enumerate(counts):
        for component, n_bytes in saved[chunk]:
            held[component] = held.get(component, 0) + n * n_bytes
        held["activations"] = held.get("activations", 0) + n * rank.cached_output
    if not first:
        held["communication_buffers"] = held.get("communication_buffers", 0) + rank.input_gradient
        if event.forward:
            held["communication_buffers"] += rank.output_gradient
    if event.forward:
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
