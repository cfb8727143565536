"""One steady step of a Megatron rank on a timeline: the schedule's passes, each unit by unit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import ge, mul

from memcheck.accounts.moves import Components, Rest
from memcheck.accounts.timeline import Timeline
from memcheck.accounts.unit import Unit
from memcheck.frameworks.megatron.fsdp import Extra
from memcheck.frameworks.megatron.schedule import PassRun
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


def walk(rank: Rank, schedule: Sequence[PassRun], rest: Rest = NO_REST) -> Timeline:
    """The account of one step. Only the fullest of the passes through the same chunk is walked."""
    timeline = Timeline()
    for component, n_bytes in (*rest.components, *rank.always):
        timeline.hold(component, n_bytes)
    timeline.mark("init", "states at rest")
    saved = [_saved(units) for units in rank.chunks]
    passes = sorted(fullest(rank, schedule).items(), key=lambda found: not found[0].forward)
    may_win = _may_win(rank, passes)
    for a_pass, moment in passes:
        units = rank.chunks[a_pass.chunk]
        if a_pass not in may_win:
            _touch(timeline, rank, saved, moment, a_pass)
            continue
        held = _held(rank, saved, moment, a_pass)
        timeline.hold_all(tuple(held.items()))
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


def _may_win(rank: Rank, passes: list[tuple[Pass, Moment]]) -> set[Pass]:
    """The passes that can hold an instant's maximum: of those through alike chunks the first of the fullest.

    Chunks are alike if they run the very same units but for their names; a pass adds the same to whatever it finds, so
    that the fullest moment decides. Where a chunk starts with a loss the order of instants could depend on the others:
    then every pass is walked.
    """
    if any(not units or units[0].kind not in ("embedding", "block") for units in rank.chunks):
        return {a_pass for a_pass, _ in passes}
    kinds = [tuple((id(u.fresh), u.kind) for u in units) for units in rank.chunks]
    best: dict[tuple[object, ...], tuple[int, Pass]] = {}
    for a_pass, moment in passes:
        around = rank.extras[a_pass.chunk] if rank.extras else ()
        key = (a_pass.forward, kinds[a_pass.chunk], around)
        if key not in best or moment.bytes > best[key][0]:
            best[key] = (moment.bytes, a_pass)
    return {a_pass for _, a_pass in best.values()}


def _touch(timeline: Timeline, rank: Rank, saved: list[Components], moment: Moment, a_pass: Pass) -> None:
    """Name the components that a pass would hold, in its order, which is that of the answer."""
    live = timeline.live
    for components in saved:
        for component, _ in components:
            live[component] += 0
        live["activations"] += 0
    if not moment.first:
        live["communication_buffers"] += 0
    around = rank.extras[a_pass.chunk] if rank.extras else ()
    if a_pass.forward:
        live["activations"] += 0
        if any(extra.forward for extra in around):
            live["communication_buffers"] += 0
    for component, _ in saved[a_pass.chunk]:
        live[component] += 0
    if not a_pass.forward:
        if any(extra.backward for extra in around):
            live["communication_buffers"] += 0
        if any(u.fresh.lingers for u in rank.chunks[a_pass.chunk]):
            live["temporaries"] += 0


def fullest(rank: Rank, schedule: Sequence[PassRun]) -> dict[Pass, Moment]:
    """For every pass its fullest moment, the first of equal ones."""
    each = [sum(u.fresh.saved for u in units) + rank.cached_output for units in rank.chunks]
    waits = rank.input_gradient
    chosen: list[tuple[int, Pass, Moment]] = []
    for a_pass, places in candidates(tuple(schedule), len(each), all(each)):
        beside = rank.forward_only if a_pass.forward else 0
        behind = waits + (rank.output_gradient if a_pass.forward else 0)
        best: tuple[int, int, tuple[int, ...], bool] | None = None
        for number, counts, first in places:
            total = sum(map(mul, counts, each)) + beside + (0 if first else behind)
            if best is None or total > best[0]:
                best = (total, number, counts, first)
        if best is not None:
            chosen.append((best[1], a_pass, Moment(best[0], best[2], best[3])))
    return {a_pass: moment for _, a_pass, moment in sorted(chosen)}


Place = tuple[int, tuple[int, ...], bool]
"""A moment of a schedule: its number in order, micro-batches in flight by chunk, whether there was no backward yet."""


@lru_cache(maxsize=512)
def candidates(
    schedule: tuple[PassRun, ...], chunks: int, every_chunk_saves: bool
) -> tuple[tuple[Pass, tuple[Place, ...]], ...]:
    """For every pass the moments that can be its fullest, whatever the chunks save.

    From one repetition of a run to the next the bytes change by a constant, and once more by the gradients that wait
    from the first backward on: so the maximum lies at its first, its second or its last repetition. A moment that holds
    no more of any chunk than an earlier one is never fuller. Where every chunk saves something, one that holds no less
    of any chunk than an earlier one, and more of some, is always fuller.
    """
    counts = [0] * chunks
    waits = False
    found: dict[Pass, list[Place]] = {}
    number = 0

    def propose(a_pass: Pass, done: tuple[int, int], run: PassRun, *, first: bool) -> None:
        nonlocal number
        now = list(counts)
        if run.forward is not None:
            now[run.forward] += done[0]
        if run.backward is not None:
            now[run.backward] -= done[1]
        known = found.setdefault(a_pass, [])
        number += 1
        mine = (number, tuple(now), first)
        if any(_covers(other, mine) for other in known):
            return
        if every_chunk_saves:
            known[:] = [other for other in known if not (_covers(mine, other) and mine[1] != other[1])]
        known.append(mine)

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
        if run.backward is not None:
            counts[run.backward] -= run.times
            waits = True
    return tuple((a_pass, tuple(places)) for a_pass, places in found.items())


def _covers(one: Place, other: Place) -> bool:
    """Whether ``one`` holds all that ``other`` does."""
    return (other[2] or not one[2]) and all(map(ge, one[1], other[1]))


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
