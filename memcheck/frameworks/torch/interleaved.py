"""The order in which a rank runs the chunks of a pipeline, and what else is alive meanwhile.

Source: torch 2.13 distributed/pipelining/schedules.py (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble,
ScheduleDualPipeV, _get_warmup_ops, _get_1f1b_rank_ops, _add_unshard_reshard). A rank holds every ``pipeline``-th stage,
or under DualPipeV one from each end. Micro-batches come in rounds, each of which passes all chunks before the next one
starts. A chunk's gradients are reduced after its last backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    """Whether the forward of this pass cannot be the highest moment of the step."""
    others: tuple[int, ...]
    """Other micro-batches in flight during this pass's backward, in each chunk."""
    beside: tuple[int, ...]
    """Other chunks whose parameters are gathered then."""
    split: bool = False
    """Whether the backward first makes gradients of inputs alone: the graph stays alive until the backward of the
    weights.
    """
    waiting: tuple[int, ...] = ()
    """Other micro-batches in flight whose backward of the weights is still to come, in each chunk."""


def chunk_parts(num_layers: int, layout: Layout, rank: int) -> tuple[Part, ...]:
    """What each chunk of a rank holds, in the order of the forward."""
    every = parts(num_layers, layout.pipeline * layout.virtual_stages, layout.fewer_layers)
    return tuple([every[stage] for stage in stages_of(layout, rank)])


def stages_of(layout: Layout, rank: int) -> tuple[int, ...]:
    """The numbers of a rank's stages."""
    ways = layout.pipeline
    if layout.pipeline_schedule == "dualpipe" and layout.virtual_stages > 1:
        return rank, 2 * ways - 1 - rank
    return tuple(range(rank, ways * layout.virtual_stages, ways))


def enough(layout: Layout, micro_batches: int) -> int:
    """Micro-batches beyond which others repeat those before."""
    rounds = max(1, micro_batches // layout.pipeline)
    return micro_batches // rounds * min(rounds, ROUNDS)


def passes(layout: Layout, rank: int, micro_batches: int) -> tuple[ChunkPass, ...]:
    """The passes that differ: a chunk's first backward, the one with most other micro-batches in flight, the last.

    Chunk by chunk from the last where there is one round; else every chunk's first ones come before others' last ones.
    """
    return _different(layout.pipeline_schedule, layout.pipeline, layout.virtual_stages, rank, micro_batches)


@lru_cache(maxsize=512)
def _different(schedule: str, ways: int, chunks: int, rank: int, micro_batches: int) -> tuple[ChunkPass, ...]:
    rounds = max(1, micro_batches // ways)
    every = list(_passes(ORDERS.get(schedule, _interleaved)(ways, chunks, rank, micro_batches), chunks, micro_batches))
    most = sum(every[0].others) + 1
    at_once = most == micro_batches * chunks
    found: list[list[ChunkPass]] = [[], [], []]
    for chunk in reversed(range(chunks)):
        mine = [each for each in every if each.chunk == chunk]
        beside = max((each.beside for each in mine), key=len)
        first, middle, last = mine[0], mine[1:-1], mine[-1]
        found[0].append(first._replace(beside=beside, muted=rounds > 1 or chunk < chunks - 1))
        if middle:
            fullest = [max(middle, key=lambda each: sum(each.others))]
            if schedule in ORDERS:  # a micro-batch that waits holds more in layers, and less in the head
                fullest = list({(each.others, each.waiting): each for each in middle}.values())
            muted = at_once or (rounds == 1 and chunk < chunks - 1)
            found[1] += [each._replace(beside=beside, muted=muted) for each in fullest]
        if not first.last:
            found[2].append(last._replace(beside=beside, muted=at_once or (rounds == 1 and chunk < chunks - 1)))
    if rounds > 1:
        return tuple(each for some in found for each in some)
    return tuple(sorted((each for some in found for each in some), key=lambda each: -each.chunk))


def split_passes(layout: Layout, rank: int) -> tuple[int, int]:
    """The number of backwards of inputs alone that a rank runs before any of weights, and the number that each further
    micro-batch adds.
    """
    order = ORDERS.get(layout.pipeline_schedule)
    if order is None:
        return 0, 0
    ways = layout.pipeline
    fewer, more = (
        sum(kind == "I" for kind, _ in order(ways, layout.virtual_stages, rank, rounds * ways)) for rounds in (2, 3)
    )
    each = (more - fewer) // ways
    return fewer - 2 * ways * each, each


Action = tuple[str, int]
"""A forward, a backward, one of the inputs or of the weights alone (``F``, ``B``, ``I``, ``W``), and the chunk."""


def _passes(actions: list[Action], chunks: int, micro_batches: int) -> Iterator[ChunkPass]:
    """Every pass, in the order of the backward."""
    in_flight, done, waiting = [0] * chunks, [0] * chunks, [0] * chunks
    for number, (kind, chunk) in enumerate(actions):
        if kind == "F":
            in_flight[chunk] += 1
            continue
        if kind == "W":
            in_flight[chunk] -= 1
            waiting[chunk] -= 1
            continue
        done[chunk] += 1
        others = [count - (index == chunk) for index, count in enumerate(in_flight)]
        following = dict.fromkeys(each for _, each in actions[number:])
        beside = tuple([each for each in following if each != chunk][: GATHERED - 1])
        yield ChunkPass(
            chunk=chunk,
            first=done[chunk] == 1,
            last=done[chunk] == micro_batches,
            muted=False,
            others=tuple(others),
            beside=beside,
            split=kind == "I",
            waiting=tuple(waiting),
        )
        in_flight[chunk] -= kind == "B"
        waiting[chunk] += kind == "I"


def _interleaved(ways: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """Interleaved 1F1B, in the order in which a rank runs it."""
    each_round = micro_batches // max(1, micro_batches // ways)
    every = micro_batches * chunks
    warm_up = min((chunks - 1) * each_round + 2 * (ways - 1 - rank), every)
    found = [("F", step // each_round % chunks) for step in range(warm_up)]
    for step in range(every):
        if warm_up + step < every:
            found.append(("F", (warm_up + step) // each_round % chunks))
        found.append(("B", chunks - 1 - step // each_round % chunks))
    return found


def _zero_bubble(ways: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """One more forward ahead for each rank that follows; as many backwards of inputs as there are earlier ranks, then
    one of weights.
    """
    each_round = micro_batches // max(1, micro_batches // ways)
    every = micro_batches * chunks
    warm_up = min((chunks - 1) * each_round + ways - 1 - rank, every)
    back = [chunks - 1 - step // each_round % chunks for step in range(every)]
    found = [("F", step // each_round % chunks) for step in range(warm_up)]
    for step in range(every):
        if warm_up + step < every:
            found.append(("F", (warm_up + step) // each_round % chunks))
        found.append(("I", back[step]))
        if step >= rank:
            found.append(("W", back[step - rank]))
    found += [("W", chunk) for chunk in back[max(0, every - rank) :]]
    return _whole_in_front(found, rank)


def _dualpipe(ways: int, chunks: int, rank: int, micro_batches: int) -> list[Action]:
    """DualPipeV: chunk 0 from the front, chunk 1 from the back (_calculate_single_rank_operations, step by step)."""
    found: list[Action] = [("F", 0)] * (2 * (ways - rank - 1)) + [("F", 0), ("F", 1)] * (rank + 1)
    found += [("I", 1), ("W", 1), ("F", 1)] * (ways - rank - 1)
    found += [("F", 0), ("B", 1), ("F", 1), ("B", 0)] * max(0, micro_batches - 2 * ways + rank + 1)
    found += [("B", 1), ("F", 1), ("B", 0)] * (ways - rank - 1)
    waiting: list[int] = []
    half = (rank + 1) // 2
    for step in range(rank + 1):
        for chunk in (1, 0):
            split = step > half or (step == half and (rank % 2 == 1 or chunk == 0))
            found.append(("I" if split else "B", chunk))
            waiting += [chunk] if split else []
    for _ in range(ways - rank - 1):
        found += [("W", waiting.pop(0))] if waiting else []
        found.append(("I", 0))
        waiting.append(0)
    found += [("W", chunk) for chunk in waiting]
    return _whole_in_front(found, rank)


def _whole_in_front(actions: list[Action], rank: int) -> list[Action]:
    """The first stage's backward, which is not split: it runs as a whole where that of its weights would (stage.py,
    backward_weight_one_chunk).
    """
    if rank:
        return actions
    return [("B" if each == ("W", 0) else each[0], each[1]) for each in actions if each != ("I", 0)]


ORDERS: dict[str, Callable[[int, int, int, int], list[Action]]] = {"zero-bubble": _zero_bubble, "dualpipe": _dualpipe}
"""Schedules that split the backward."""
