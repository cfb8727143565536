"""The order of forwards and backwards on one pipeline rank, as runs of alike ones.

Source: Megatron-core ``pipeline_parallel/schedules.py`` (forward_backward_pipelining_without_interleaving,
forward_backward_pipelining_with_interleaving, get_pp_rank_microbatches, get_schedule_table).
"""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.record import Record
from memcheck.remembered import lru_cache

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
    ahead, beside = _cut(forwards, start)
    return (*(PassRun(chunk, None, n) for chunk, n in ahead), *_paired(beside, backwards))


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
        behind, passes = left.pop()
        n = min(size, passes) if size else passes
        found.append(PassRun(chunk if size else None, behind, n))
        if n < passes:
            left.append((behind, passes - n))
        size -= n if size else 0
        if not size:
            chunk, size = next(waiting, (None, 0))
    return found
