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

    forward_chunk: int | None
    backward_chunk: int | None
    times: int


class SchedulePosition(Record):
    """A rank's position in the pipeline, and how the schedule is set up."""

    rank: int
    """Pipeline rank, from 0."""
    pipeline_ranks: int
    """Number of pipeline ranks."""
    chunks_per_rank: int
    """Model chunks per rank."""
    micro_batches_per_group: int
    """Micro-batches that run through one chunk before the rank turns to the next chunk."""
    runs_passes_side_by_side: bool = False
    """``overlap_moe_expert_parallel_comm``: forwards and backwards run side by side."""
    all_forwards_first: bool = False
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
    if position.all_forwards_first:
        return micro_batches
    full_groups, remainder = divmod(micro_batches, position.micro_batches_per_group)
    return (
        position.micro_batches_per_group
        * min(
            full_groups,
            ceil_div(warm_up(position), position.micro_batches_per_group * position.chunks_per_rank) + SETTLING_GROUPS,
        )
        + remainder
    )


@lru_cache(maxsize=1024)
def runs(position: SchedulePosition, micro_batches: int) -> tuple[PassRun, ...]:
    """Return the forwards and backwards of a pipeline rank in order, as runs of equal passes.

    ``micro_batches``: per step. Groups of ``position.group`` micro-batches go through one chunk after the other, so
    that the schedule repeats itself after ``group * chunks`` passes. Repetitions without a new peak are left out: the
    groups of the warm-up, and a few after it, are enough.
    """
    chunks, group = position.chunks_per_rank, position.micro_batches_per_group
    if position.all_forwards_first:
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
    """The forward or the backward of one micro-batch through one chunk."""

    is_forward: bool
    """Whether it is the forward."""
    chunk: int
    """Number of the chunk on its rank."""


class InFlight(Record):
    """A pass at one moment of the schedule, and what else is live then."""

    number: int
    """In the schedule's order."""
    running_pass: Pass
    micro_batches_by_chunk: tuple[int, ...]
    """Micro-batches in flight, for each chunk; without that of the running pass."""
    phase: int
    """:data:`ALL_FORWARD`, :data:`GRADIENTS` or :data:`WARM_INPUT`: what the step has left live, each more than the
    one before.
    """

    @property
    def before_first_backward(self) -> bool:
        """Whether there has been no backward yet."""
        return self.phase == ALL_FORWARD


ALL_FORWARD = 0
"""Before the first backward no gradient is live."""
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
    ``every_chunk_saves``: more micro-batches in flight then always mean more bytes.
    """
    search = _CandidateSearch(kinds, every_chunk_saves)
    had_backward = False
    # the warm-up's last input stays live once so many backwards of its chunk have run
    warm_chunk, backwards_left = _last_warm_up_input(schedule)
    for run in schedule:
        frees_warm_input = run.backward_chunk == warm_chunk
        repetitions_before_warm = max(0, backwards_left) if frees_warm_input else run.times
        last = run.times - 1
        for repetition in sorted({0, min(1, last), min(repetitions_before_warm, last), last}):
            backwards_done = repetition if run.backward_chunk is not None else 0
            phase = GRADIENTS if had_backward or backwards_done > 0 else ALL_FORWARD
            if backwards_left <= 0 or repetition >= repetitions_before_warm:
                phase = WARM_INPUT
            if run.forward_chunk is not None:
                counts = search.counts_after(run, repetition, backwards_done)
                search.propose(Pass(is_forward=True, chunk=run.forward_chunk), counts, phase)
            if run.backward_chunk is not None:
                counts = search.counts_after(run, repetition + 1, repetition + 1)
                search.propose(Pass(is_forward=False, chunk=run.backward_chunk), counts, phase)
        search.counts = search.counts_after(run, run.times, run.times)
        had_backward = had_backward or run.backward_chunk is not None
        if frees_warm_input:
            backwards_left -= run.times
    return search.found()


class _CandidateSearch:
    """The passes of a schedule that may have the highest live memory, collected run by run."""

    def __init__(self, kinds: tuple[int, ...], every_chunk_saves: bool) -> None:
        """Begin before the first run; the parameters are those of :func:`candidates`."""
        self._kinds, self._every_chunk_saves = kinds, every_chunk_saves
        self.counts = [0] * len(kinds)
        """Micro-batches in flight of each chunk, before the run that is looked at."""
        self._by_pass: dict[tuple[bool, int], list[tuple[LiveCounts, InFlight]]] = {}
        """The candidates, by whether they are forwards and by the kind of their chunk."""
        self._proposed = 0

    def counts_after(self, run: PassRun, forwards: int, backwards: int) -> list[int]:
        """Return the micro-batches in flight of each chunk after some passes of ``run``."""
        counts = list(self.counts)
        if run.forward_chunk is not None:
            counts[run.forward_chunk] += forwards
        if run.backward_chunk is not None:
            counts[run.backward_chunk] -= backwards
        return counts

    def propose(self, running: Pass, counts: list[int], phase: int) -> None:
        """Add a pass to the candidates of its kind, unless an earlier one is at least as high; drop those it exceeds.

        ``counts``, ``phase``: as in :class:`InFlight`.
        """
        self._proposed += 1
        live: LiveCounts = (phase, *_in_flight_by_kind(counts, self._kinds))
        if phase != ALL_FORWARD:
            live += _idle_chunks(counts, self._kinds, running)
        same_passes = self._by_pass.setdefault((running.is_forward, self._kinds[running.chunk]), [])
        if any(_covers(earlier, live) for earlier, _ in same_passes):
            return
        if self._every_chunk_saves:
            in_flight = slice(1, 1 + len(self._kinds))
            same_passes[:] = [
                (earlier, moment)
                for earlier, moment in same_passes
                if not _covers(live, earlier) or live[in_flight] == earlier[in_flight]
            ]
        moment = InFlight(
            number=self._proposed, running_pass=running, micro_batches_by_chunk=tuple(counts), phase=phase
        )
        same_passes.append((live, moment))

    def found(self) -> tuple[InFlight, ...]:
        """Return the candidates in the schedule's order, forwards first."""
        moments: list[InFlight] = []
        for same_passes in self._by_pass.values():
            moments += [moment for _, moment in same_passes]
        return tuple(sorted(moments, key=lambda moment: (not moment.running_pass.is_forward, moment.number)))


def _last_warm_up_input(schedule: tuple[PassRun, ...]) -> tuple[int, int]:
    """Return the chunk of the last input that the warm-up receives, and how many of its backwards run before it stays
    live.

    The input is that of the first forward that overlaps a backward. Without one, the result is (-1, 1).
    """
    forwards = Counter[int]()
    for run in schedule:
        if run.forward_chunk is not None and run.backward_chunk is not None:
            return run.forward_chunk, forwards[run.forward_chunk] + 1
        if run.forward_chunk is not None:
            forwards[run.forward_chunk] += run.times
    return -1, 1


LiveCounts = tuple[int, ...]
"""What is live during a pass: the phase, then per kind of chunk the micro-batches in flight and, after the first
backward, the chunks without any.
"""


def _covers(live: LiveCounts, other: LiveCounts) -> bool:
    """Say whether at least as much of everything is live as in ``other``; only numbers that both have are compared."""
    return all(map(ge, live, other))


def _in_flight_by_kind(counts: Sequence[int], kinds: Sequence[int]) -> list[int]:
    """Add up the micro-batches in flight of equal chunks. ``counts``, ``kinds``: one number for each chunk."""
    by_kind = [0] * len(kinds)
    for kind, count in zip(kinds, counts, strict=True):
        by_kind[kind] += count
    return by_kind


def _idle_chunks(counts: Sequence[int], kinds: Sequence[int], running: Pass) -> tuple[int, ...]:
    """Count the chunks of each kind that have no micro-batch in flight, without the chunk of the running pass.

    ``counts``: micro-batches in flight of each chunk. ``kinds``: as in :func:`candidates`.
    """
    idle = [0] * len(kinds)
    if 0 in counts:
        for chunk, count in enumerate(counts):
            if not count and chunk != running.chunk:
                idle[kinds[chunk]] += 1
    return tuple(idle)
