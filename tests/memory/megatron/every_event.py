"""A pipeline rank's step event by event, as Megatron's loops run it: what the shorter account is held against."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.frameworks.megatron.schedule import PassRun, Place, warm_up
from memcheck.frameworks.megatron.step import Moment, Pass, Rank


def expanded(schedule: list[PassRun]) -> Iterator[Pass]:
    """Every pass of a schedule."""
    for run in schedule:
        for _ in range(run.times):
            if run.forward is not None:
                yield Pass(True, run.forward)
            if run.backward is not None:
                yield Pass(False, run.backward)


def every_pass(place: Place, micro_batches: int) -> list[Pass]:
    """Every pass of a step: get_schedule_table, and the warm-up, steady and cool-down loops of schedules.py."""
    chunks, group = place.chunks, place.group
    table = [
        chunk
        for start in range(0, micro_batches, group)
        for chunk in range(chunks)
        for _ in range(min(group, micro_batches - start))
    ]
    start = min(warm_up(place), len(table))
    found = [Pass(True, chunk) for chunk in table[:start]]
    for i, chunk in enumerate(table):
        if start + i < len(table):
            found.append(Pass(True, table[start + i]))
        found.append(Pass(False, chunks - 1 - chunk))
    return found


def fullest_of(rank: Rank, passes: list[Pass]) -> dict[Pass, Moment]:
    """For every pass its fullest moment, by counting."""
    each = [sum(u.fresh.saved for u in units) + rank.cached_output for units in rank.chunks]
    counts = [0] * len(each)
    found: dict[Pass, Moment] = {}
    first = True
    for one in passes:
        if not one.forward:
            counts[one.chunk] -= 1
        total = sum(n * size for n, size in zip(counts, each, strict=True)) + (0 if first else rank.input_gradient)
        if one.forward:
            total += rank.forward_only + (0 if first else rank.output_gradient)
        if one not in found or total > found[one].bytes:
            found[one] = Moment(total, tuple(counts), first)
        if one.forward:
            counts[one.chunk] += 1
        else:
            first = False
    return found
