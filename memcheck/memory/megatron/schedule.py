"""The order of forwards and backwards on one pipeline rank.

Source: Megatron-core ``pipeline_parallel/schedules.py`` (forward_backward_pipelining_without_interleaving,
forward_backward_pipelining_with_interleaving, get_pp_rank_microbatches, get_schedule_table).
"""

from __future__ import annotations

from memcheck.record import Record


class Event(Record):
    """One micro-batch through one chunk."""

    forward: bool
    chunk: int


def warm_up(rank: int, pipeline: int, chunks: int, group: int) -> int:
    """Forwards before the first backward."""
    if pipeline == 1:
        return 0
    if chunks == 1:
        return pipeline - rank - 1
    return 2 * (pipeline - rank - 1) + (chunks - 1) * group


def chunk_table(micro_batches: int, chunks: int, group: int) -> list[int]:
    """The chunk of each virtual micro-batch: groups of ``group`` micro-batches run through one chunk after another."""
    table: list[int] = []
    for start in range(0, micro_batches, group):
        size = min(group, micro_batches - start)
        for chunk in range(chunks):
            table.extend([chunk] * size)
    return table


def events(rank: int, pipeline: int, chunks: int, micro_batches: int, group: int) -> list[Event]:
    """Forwards and backwards in order. Steady repetition is cut: two full rounds behind the warm-up are enough."""
    start = warm_up(rank, pipeline, chunks, group)
    enough = -(-start // chunks) + 2 * group
    micro_batches = min(micro_batches, -(-enough // group) * group)
    table = chunk_table(micro_batches, chunks, group)
    total = len(table)
    start = min(start, total)
    forward = [Event(True, c) for c in range(chunks)]
    backward = [Event(False, chunks - 1 - c) for c in range(chunks)]
    found = [forward[c] for c in table[:start]]
    for i in range(total):
        if start + i < total:
            found.append(forward[table[start + i]])
        found.append(backward[table[i]])
    return found
