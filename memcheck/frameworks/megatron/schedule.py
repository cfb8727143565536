"""The order of forwards and backwards on one pipeline rank, as runs of alike ones.

Source: Megatron-core ``pipeline_parallel/schedules.py`` (forward_backward_pipelining_without_interleaving,
forward_backward_pipelining_with_interleaving, get_pp_rank_microbatches, get_schedule_table).

The second part finds the moments at which a pass can be the fullest, whatever its chunks save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import ge

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


class Place(Record):
    """A rank's place in the pipeline, and how the schedule is set up."""

    rank: int
    pipeline: int
    chunks: int
    group: int
    """Micro-batches that run through one chunk after another."""
    overlaps: bool = False
    """``overlap_moe_expert_parallel_comm``: forwards and backwards run side by side."""
    forwards_first: bool = False
    """All forwards run before the first backward (nanotron's ``afab``), on any number of ranks."""


def warm_up(place: Place) -> int:
    """Forwards before the first backward."""
    rank, pipeline, chunks, group, overlaps, _ = place
    if pipeline == 1:
        return 0
    if chunks == 1:
        return pipeline - rank - 1
    return 2 * (pipeline - rank - 1) + (chunks - 1) * group + overlaps


def settled(place: Place, micro_batches: int) -> int:
    """The fewest micro-batches whose schedule is the same on every rank; ``place``: the first rank's.

    That rank warms up longest, so that :func:`runs` cuts no other rank's schedule later.
    """
    if place.forwards_first:
        return micro_batches
    whole, rest = divmod(micro_batches, place.group)
    return place.group * min(whole, -(-warm_up(place) // (place.group * place.chunks)) + SETTLING_GROUPS) + rest


@lru_cache(maxsize=1024)
def runs(place: Place, micro_batches: int) -> tuple[PassRun, ...]:
    """Forwards and backwards in order.

    Groups of ``group`` micro-batches run through one chunk after another, so that the schedule repeats itself after
    ``group * chunks`` passes, except for its ends; the repetition is cut, and what is left is as long as the warm-up.
    """
    chunks, group = place.chunks, place.group
    if place.forwards_first:
        return (PassRun(0, None, micro_batches), PassRun(None, 0, micro_batches))
    start = warm_up(place)
    whole, rest = divmod(micro_batches, group)
    whole = min(whole, -(-start // (group * chunks)) + SETTLING_GROUPS)
    sizes = [group] * whole + ([rest] if rest else [])
    if chunks == 1:
        sizes = [sum(sizes)]
    forwards = [(chunk, size) for size in sizes for chunk in range(chunks)]
    backwards = [(chunks - 1 - chunk, size) for chunk, size in forwards]
    start = min(start, chunks * sum(sizes))
    ahead, later = _cut(forwards, start)
    return (*(PassRun(chunk, None, n) for chunk, n in ahead), *_paired(later, backwards))


Passes = list[tuple[int, int]]
"""(chunk, how many in a row)."""


def _cut(passes: Iterable[tuple[int, int]], n: int) -> tuple[Passes, Passes]:
    """The first ``n`` passes, and the rest."""
    first: Passes = []
    rest: Passes = []
    for chunk, size in passes:
        mine = min(n, size)
        n -= mine
        if mine:
            first.append((chunk, mine))
        if size > mine:
            rest.append((chunk, size - mine))
    return first, rest


def _paired(forwards: Passes, backwards: Passes) -> list[PassRun]:
    """One forward, one backward while there are forwards; then the backwards that are left."""
    found: list[PassRun] = []
    waiting, left = iter(forwards), list(reversed(backwards))
    chunk, size = next(waiting, (None, 0))
    while left:
        backward_chunk, passes = left.pop()
        n = min(size, passes) if size else passes
        found.append(PassRun(chunk if size else None, backward_chunk, n))
        if n < passes:
            left.append((backward_chunk, passes - n))
        size -= n if size else 0
        if not size:
            chunk, size = next(waiting, (None, 0))
    return found


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
    """What else is live: nothing before the first backward; then gradients; then :data:`WARM_INPUT`, too."""

    @property
    def first(self) -> bool:
        """Whether there has been no backward yet."""
        return not self.waits


WARM_INPUT = 2
"""From its backward on, the last input that the warm-up has received stays live with its gradient. A variable of an
interleaved schedule (``input_tensor``) holds it, which nothing overwrites while sends and receives overlap the passes.
"""


@lru_cache(maxsize=512)
def candidates(schedule: tuple[PassRun, ...], kinds: tuple[int, ...], every_chunk_saves: bool) -> tuple[InFlight, ...]:
    """For every kind of pass the moments that can be its fullest, whatever the chunks save, forwards first.

    ``kinds``: for each chunk the rank's first that is like it. From one repetition of a run to the next the bytes
    change by a constant, and once more by the gradients that wait from the first backward on: so the maximum lies at
    its first, its second or its last repetition, or where the last input of the warm-up begins to wait. A moment that
    holds no more of any kind of chunk than an earlier one, and has no more of them empty, is never fuller. Where every
    chunk saves something, one that holds no less of any kind than an earlier one, and more of some, is always fuller.
    """
    counts, held = [0] * len(kinds), [0] * len(kinds)
    waits = False
    warm, left = _warm_input(schedule)
    found: dict[tuple[bool, int], list[tuple[LiveCounts, InFlight]]] = {}
    number, of_each = 0, slice(1, 1 + len(kinds))

    def propose(a_pass: Pass, done: tuple[int, int], run: PassRun, waits: int) -> None:
        nonlocal number
        now, of_kinds = list(counts), list(held)
        for chunk, change in ((run.forward, done[0]), (run.backward, -done[1])):
            if chunk is not None:
                now[chunk] += change
                of_kinds[kinds[chunk]] += change
        known = found.setdefault((a_pass.forward, kinds[a_pass.chunk]), [])
        number += 1
        mine = (waits, *of_kinds, *_empty(now, kinds, a_pass)) if waits else (0, *of_kinds)
        for other, _ in known:
            if all(map(ge, other, mine)):
                return
        if every_chunk_saves:
            held_here = mine[of_each]
            known[:] = [each for each in known if not (all(map(ge, mine, each[0])) and held_here != each[0][of_each])]
        known.append((mine, InFlight(number=number, of=a_pass, counts=tuple(now), waits=waits)))

    for run in schedule:
        reaches = max(0, left) if run.backward == warm else run.times
        for k in sorted({0, min(1, run.times - 1), min(reaches, run.times - 1), run.times - 1}):
            gone = k if run.backward is not None else 0
            now = WARM_INPUT if left <= 0 or k >= reaches else int(waits or gone > 0)
            if run.forward is not None:
                propose(Pass(True, run.forward), (k, gone), run, now)
            if run.backward is not None:
                propose(Pass(False, run.backward), (k + 1, k + 1), run, now)
        for chunk, change in ((run.forward, run.times), (run.backward, -run.times)):
            if chunk is not None:
                counts[chunk] += change
                held[kinds[chunk]] += change
        waits = waits or run.backward is not None
        left -= run.times * (run.backward == warm)
    moments = [moment for some in found.values() for _, moment in some]
    return tuple(sorted(moments, key=lambda moment: (not moment.of.forward, moment.number)))


def _warm_input(schedule: tuple[PassRun, ...]) -> tuple[int, int]:
    """The chunk of the last input that the warm-up receives, and how many of its backwards are over before it waits.

    The input is that of the first forward that overlaps a backward. If there is none, the warm-up receives none that is
    left.
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


def _empty(counts: Sequence[int], kinds: Sequence[int], passing: Pass) -> tuple[int, ...]:
    """Chunks of each kind with nothing in flight. After the first backward they hold what they kept."""
    found = [0] * len(kinds)
    if 0 in counts:
        for chunk, count in enumerate(counts):
            if not count and chunk != passing.chunk:
                found[kinds[chunk]] += 1
    return tuple(found)
