"""The order of forwards and backwards on one pipeline rank, as runs of equal ones.

Source: Megatron-core ``pipeline_parallel/schedules.py`` (forward_backward_pipelining_without_interleaving,
forward_backward_pipelining_with_interleaving, get_pp_rank_microbatches, get_schedule_table).

The second part finds the moments at which a pass can be the fullest, whatever its chunks save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import ge

from memcheck.autograd.tensor import ceil_div
from memcheck.record import Record

SETTLING_GROUPS = 2
"""Groups of micro-batches after the warm-up that are kept: before the first backward no gradient waits, so that only
the second group shows the state that all further ones repeat.
"""


class PassRun(Record):
    """``times`` in a row: a forward through one chunk, then a backward through one; None: no such pass."""

    forward: int | None
    backward: int | None
    times: int


class SchedulePosition(Record):
    """A rank's position in the pipeline, and how the schedule is set up."""

    rank: int
    """Pipeline rank, from 0."""
    pipeline: int
    """Number of pipeline ranks."""
    chunks: int
    """Model chunks per rank."""
    group: int
    """Micro-batches that run through one chunk after another."""
    overlaps: bool = False
    """``overlap_moe_expert_parallel_comm``: forwards and backwards run side by side."""
    forwards_first: bool = False
    """All forwards run before the first backward (nanotron's ``afab``), on any number of ranks."""


def warm_up(position: SchedulePosition) -> int:
    """Return the number of forwards that a rank runs before its first backward."""
    rank, pipeline, chunks, group, overlaps, _forwards_first = position
    if pipeline == 1:
        return 0
    if chunks == 1:
        return pipeline - rank - 1
    later_ranks = pipeline - rank - 1
    # until its first gradient is back, the first micro-batch passes the later ranks twice
    forwards = 2 * later_ranks + (chunks - 1) * group
    return forwards + 1 if overlaps else forwards


def settled(position: SchedulePosition, micro_batches: int) -> int:
    """Return the fewest micro-batches whose schedule is the same, on every rank, as that of ``micro_batches``.

    ``position``: the first rank's. It warms up longest, so that :func:`runs` cuts no other rank's schedule later.
    """
    if position.forwards_first:
        return micro_batches
    full_groups, remainder = divmod(micro_batches, position.group)
    return (
        position.group
        * min(full_groups, ceil_div(warm_up(position), position.group * position.chunks) + SETTLING_GROUPS)
        + remainder
    )


@lru_cache(maxsize=1024)
def runs(position: SchedulePosition, micro_batches: int) -> tuple[PassRun, ...]:
    """Return the forwards and backwards of a pipeline rank in order, as runs of equal passes.

    ``micro_batches``: per step. Groups of ``position.group`` micro-batches go through one chunk after the other, so
    that the schedule repeats itself after ``group * chunks`` passes. Repetitions without a new peak are left out: the
    groups of the warm-up, and a few after it, are enough.
    """
    chunks, group = position.chunks, position.group
    if position.forwards_first:
        return (PassRun(0, None, micro_batches), PassRun(None, 0, micro_batches))
    warm_up_passes = warm_up(position)
    full_groups, remainder = divmod(micro_batches, group)
    full_groups = min(full_groups, ceil_div(warm_up_passes, group * chunks) + SETTLING_GROUPS)
    sizes = [group] * full_groups + ([remainder] if remainder else [])
    if chunks == 1:
        sizes = [sum(sizes)]
    forwards: Passes = []
    for size in sizes:
        forwards += [(chunk, size) for chunk in range(chunks)]
    backwards = [(chunks - 1 - chunk, size) for chunk, size in forwards]
    warm_up_passes = min(warm_up_passes, chunks * sum(sizes))
    warm_up_forwards, steady_forwards = _split_passes(forwards, warm_up_passes)
    return (*(PassRun(chunk, None, n) for chunk, n in warm_up_forwards), *_alternate(steady_forwards, backwards))


Passes = list[tuple[int, int]]
"""(chunk, how many in a row)."""


def _split_passes(passes: Iterable[tuple[int, int]], micro_batches: int) -> tuple[Passes, Passes]:
    """Split passes into those of the first ``micro_batches`` micro-batches and the later ones."""
    before: Passes = []
    after: Passes = []
    for chunk, size in passes:
        taken = min(micro_batches, size)
        micro_batches -= taken
        if taken:
            before.append((chunk, taken))
        if size > taken:
            after.append((chunk, size - taken))
    return before, after


def _alternate(forwards: Passes, backwards: Passes) -> list[PassRun]:
    """Pair each forward with a backward, as 1F1B does; when no forward is left, run the remaining backwards.

    ``forwards``, ``backwards``: runs in order, as (chunk, number of passes).
    """
    alternated: list[PassRun] = []
    forward_runs, backward_runs = iter(forwards), list(reversed(backwards))
    chunk, forwards_left = next(forward_runs, (None, 0))
    while backward_runs:
        backward_chunk, backwards_left = backward_runs.pop()
        passes = min(forwards_left, backwards_left) if forwards_left else backwards_left
        alternated.append(PassRun(chunk if forwards_left else None, backward_chunk, passes))
        if passes < backwards_left:
            backward_runs.append((backward_chunk, backwards_left - passes))
        if forwards_left:
            forwards_left -= passes
        if not forwards_left:
            chunk, forwards_left = next(forward_runs, (None, 0))
    return alternated


class Pass(Record):
    """A micro-batch's way through one chunk."""

    forward: bool
    chunk: int


class InFlight(Record):
    """A pass at one moment of the schedule, and what else is live then."""

    number: int
    """In the schedule's order."""
    of: Pass
    counts: tuple[int, ...]
    """Micro-batches in flight, for each chunk; without the one that passes."""
    waits: int
    """What else is live: 0 before the first backward; then :data:`GRADIENTS`; then :data:`WARM_INPUT`, too."""

    @property
    def first(self) -> bool:
        """Whether there has been no backward yet."""
        return not self.waits


GRADIENTS = 1
"""After the first backward its gradients are live."""
WARM_INPUT = 2
"""From its backward on, the last input that the warm-up has received stays live with its gradient. A variable of an
interleaved schedule (``input_tensor``) holds it, which nothing overwrites while sends and receives overlap the passes.
"""


@lru_cache(maxsize=512)
def candidates(schedule: tuple[PassRun, ...], kinds: tuple[int, ...], every_chunk_saves: bool) -> tuple[InFlight, ...]:
    """Return the passes of a schedule at which live memory can be highest, whatever bytes the chunks save.

    Forwards come first. ``kinds``: for each chunk the number of the first equal chunk of the rank; the search is per
    kind of pass (forward or backward of equal chunks). Within a run the bytes change by a constant per repetition. So
    only its first, second and last repetitions are candidates, and the one from which the warm-up's last input is kept.
    A candidate is dropped if another one has at least as many micro-batches in flight of every kind, and at least as
    many idle chunks. ``every_chunk_saves``: more micro-batches in flight then always mean more bytes.
    """
    counts, in_flight_by_kind = [0] * len(kinds), [0] * len(kinds)
    had_backward = False
    warm_chunk, backwards_left = _last_warm_up_input(schedule)
    by_pass: dict[tuple[bool, int], list[tuple[LiveCounts, InFlight]]] = {}
    number, kind_slice = 0, slice(1, 1 + len(kinds))

    def propose(a_pass: Pass, passes_done: tuple[int, int], run: PassRun, waits: int) -> None:
        """Add a pass to the candidates of its kind, unless an earlier one is at least as high; drop those it exceeds.

        ``passes_done``: forwards and backwards of ``run`` that are over. ``waits``: see :class:`InFlight`.
        """
        nonlocal number
        counts_now, now_by_kind = list(counts), list(in_flight_by_kind)
        for chunk, change in ((run.forward, passes_done[0]), (run.backward, -passes_done[1])):
            if chunk is not None:
                counts_now[chunk] += change
                now_by_kind[kinds[chunk]] += change
        same_passes = by_pass.setdefault((a_pass.forward, kinds[a_pass.chunk]), [])
        number += 1
        live: LiveCounts = (waits, *now_by_kind)
        if waits:
            live += _idle_chunks(counts_now, kinds, a_pass)
        if any(all(map(ge, other_live, live)) for other_live, _ in same_passes):
            return

        def exceeds(other_live: LiveCounts) -> bool:
            """Say whether all of the other pass is live now, and more micro-batches of some kind."""
            return all(map(ge, live, other_live)) and live[kind_slice] != other_live[kind_slice]

        if every_chunk_saves:
            same_passes[:] = [entry for entry in same_passes if not exceeds(entry[0])]
        same_passes.append((live, InFlight(number=number, of=a_pass, counts=tuple(counts_now), waits=waits)))

    for run in schedule:
        frees_warm_input = run.backward == warm_chunk
        repetitions_before_wait = max(0, backwards_left) if frees_warm_input else run.times
        last = run.times - 1
        for repetition in sorted({0, min(1, last), min(repetitions_before_wait, last), last}):
            backwards_done = repetition if run.backward is not None else 0
            if backwards_left <= 0 or repetition >= repetitions_before_wait:
                waits = WARM_INPUT
            else:
                waits = GRADIENTS if had_backward or backwards_done > 0 else 0
            if run.forward is not None:
                propose(Pass(forward=True, chunk=run.forward), (repetition, backwards_done), run, waits)
            if run.backward is not None:
                propose(Pass(forward=False, chunk=run.backward), (repetition + 1, repetition + 1), run, waits)
        for chunk, change in ((run.forward, run.times), (run.backward, -run.times)):
            if chunk is not None:
                counts[chunk] += change
                in_flight_by_kind[kinds[chunk]] += change
        had_backward = had_backward or run.backward is not None
        if frees_warm_input:
            backwards_left -= run.times
    moments: list[InFlight] = []
    for same_passes in by_pass.values():
        moments += [moment for _, moment in same_passes]
    return tuple(sorted(moments, key=lambda moment: (not moment.of.forward, moment.number)))


def _last_warm_up_input(schedule: tuple[PassRun, ...]) -> tuple[int, int]:
    """Return the chunk of the last input that the warm-up receives, and how many of its backwards run before it stays
    live.

    The input is that of the first forward that overlaps a backward. Without one, the result is (-1, 1).
    """
    forwards = Counter[int]()
    for run in schedule:
        if run.forward is not None and run.backward is not None:
            return run.forward, forwards[run.forward] + 1
        if run.forward is not None:
            forwards[run.forward] += run.times
    return -1, 1


LiveCounts = tuple[int, ...]
"""What is live during a pass: what waits, then per kind the micro-batches in flight and, after the first backward, the
empty chunks.

One with as much of everything that both have, ``all(map(ge, one, other))``, holds all that the other does.
"""


def _idle_chunks(counts: Sequence[int], kinds: Sequence[int], passing: Pass) -> tuple[int, ...]:
    """Count the chunks of each kind that have no micro-batch in flight, without the chunk of the running pass.

    ``counts``: micro-batches in flight of each chunk. ``kinds``: as in :func:`candidates`. ``passing``: the running
    pass.
    """
    idle = [0] * len(kinds)
    if 0 in counts:
        for chunk, count in enumerate(counts):
            if not count and chunk != passing.chunk:
                idle[kinds[chunk]] += 1
    return tuple(idle)
