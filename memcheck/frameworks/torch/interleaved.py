"""The order in which a rank runs the chunks of an interleaved pipeline, and what else is alive meanwhile.

Source: torch 2.13 distributed/pipelining/schedules.py (ScheduleInterleaved1F1B, _get_warmup_ops, _get_1f1b_rank_ops,
_add_unshard_reshard). A rank holds every ``pipeline``-th stage. Micro-batches come in rounds, each of which passes all
chunks before the next one starts; a chunk's gradients are reduced behind its last backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.unit import Part
from memcheck.frameworks.torch.pipelining import parts
from memcheck.job.types import Layout
from memcheck.record import Record
from memcheck.remembered import lru_cache

GATHERED = 3
"""Chunks whose parameters are gathered at once: those that come next (``max_active_stages``)."""
ROUNDS = 3
"""Rounds beyond which others repeat the second."""


class ChunkPass(Record):
    """One micro-batch through one chunk, backward included."""

    chunk: int
    first: bool
    """The chunk's first micro-batch."""
    last: bool
    muted: bool
    """Its forward is no candidate for the highest moment of any."""
    others: tuple[int, ...]
    """Micro-batches in flight beside it during its backward, in each chunk."""
    beside: tuple[int, ...]
    """Other chunks whose parameters are gathered then."""


def chunk_parts(num_layers: int, layout: Layout, rank: int) -> tuple[Part, ...]:
    """What each chunk of a rank holds, in the order of the forward."""
    return parts(num_layers, layout.pipeline * layout.virtual_stages, layout.fewer_layers)[rank :: layout.pipeline]


def enough(layout: Layout, micro_batches: int) -> int:
    """Micro-batches beyond which others repeat those before."""
    rounds = max(1, micro_batches // layout.pipeline)
    return micro_batches // rounds * min(rounds, ROUNDS)


@lru_cache(maxsize=512)
def passes(ways: int, chunks: int, rank: int, micro_batches: int) -> tuple[ChunkPass, ...]:
    """The passes that differ: a chunk's first backward, the one with most beside it, the last.

    Chunk by chunk from the last where there is one round; else every chunk's first ones come before others' last ones.
    """
    rounds = max(1, micro_batches // ways)
    every = list(_passes(ways, chunks, rank, micro_batches))
    most = sum(every[0].others) + 1
    at_once = most == micro_batches * chunks
    found: list[list[ChunkPass]] = [[], [], []]
    for chunk in reversed(range(chunks)):
        mine = [each for each in every if each.chunk == chunk]
        beside = max((each.beside for each in mine), key=len)
        first, middle, last = mine[0], mine[1:-1], mine[-1]
        found[0].append(first._replace(beside=beside, muted=rounds > 1 or chunk < chunks - 1))
        if middle:
            fullest = max(middle, key=lambda each: sum(each.others))
            found[1].append(fullest._replace(beside=beside, muted=at_once or (rounds == 1 and chunk < chunks - 1)))
        if not first.last:
            found[2].append(last._replace(beside=beside, muted=at_once or (rounds == 1 and chunk < chunks - 1)))
    if rounds > 1:
        return tuple(each for some in found for each in some)
    return tuple(sorted((each for some in found for each in some), key=lambda each: -each.chunk))


def _passes(ways: int, chunks: int, rank: int, micro_batches: int) -> Iterator[ChunkPass]:
    """Every pass, in the order of the backward."""
    actions = _actions(ways, chunks, rank, micro_batches)
    in_flight, done = [0] * chunks, [0] * chunks
    for number, (forward, chunk) in enumerate(actions):
        if forward:
            in_flight[chunk] += 1
            continue
        done[chunk] += 1
        others = [count - (index == chunk) for index, count in enumerate(in_flight)]
        following = dict.fromkeys(each for _, each in actions[number:])
        beside = tuple(list(following)[1:GATHERED])
        yield ChunkPass(
            chunk=chunk,
            first=done[chunk] == 1,
            last=done[chunk] == micro_batches,
            muted=False,
            others=tuple(others),
            beside=beside,
        )
        in_flight[chunk] -= 1


def _actions(ways: int, chunks: int, rank: int, micro_batches: int) -> list[tuple[bool, int]]:
    """(forward or backward, chunk) in the order in which a rank runs them."""
    each_round = micro_batches // max(1, micro_batches // ways)
    every = micro_batches * chunks
    warm_up = min((chunks - 1) * each_round + 2 * (ways - 1 - rank), every)
    found = [(True, step // each_round % chunks) for step in range(warm_up)]
    for step in range(every):
        if warm_up + step < every:
            found.append((True, (warm_up + step) // each_round % chunks))
        found.append((False, chunks - 1 - step // each_round % chunks))
    return found
