"""Which layers a pipeline rank holds, and how many micro-batches it keeps alive."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache

from memcheck.accounts.unit import Part
from memcheck.errors import UnsupportedError
from memcheck.job.types import Layout, TrainingJob
from memcheck.record import Record

SPLIT = ("zero-bubble", "dualpipe")
"""Schedules that run the gradients of inputs and of weights at different times."""


@lru_cache(maxsize=256)
def parts(num_layers: int, ways: int, fewer: tuple[int, int] = (0, 0)) -> tuple[Part, ...]:
    """Split layers evenly over ``ways`` pipeline ranks; if they do not divide, the first ranks take one more each.

    The first rank has the embedding, the last one the final norm and the head. With virtual stages a rank holds several
    chunks; for its memory only their number of layers matters, and they are taken as one run. ``fewer``: the number of
    layers that the embedding counts as, and that the head counts as (torchtitan/distributed/pipeline_parallel.py,
    _generate_llm_fqn_per_model_part).
    """
    less = (fewer[0], *(0,) * (ways - 2), fewer[1]) if ways > 1 else (0,)
    base, extra = divmod(num_layers + sum(less), ways)
    if base < max(less):
        raise UnsupportedError(
            f"{num_layers} layers and {sum(less)} for the ends make fewer than {max(less)} for each of {ways} stages",
            "use fewer pipeline stages",
            "/parallelism/pipeline",
        )
    found, start = [], 0
    for rank in range(ways):
        end = start + base + (1 if rank < extra else 0) - less[rank]
        found.append(Part(first=start, last=end, embedding=rank == 0, head=rank == ways - 1))
        start = end
    return tuple(found)


class Border(Record):
    """Bytes that a stage keeps of what it exchanges with its neighbours."""

    output: int = 0
    """Output of each micro-batch in flight, cached until its backward (torch before 2.15)."""
    input_gradient: int = 0
    """The last one, cached while it is sent."""
    unsent_output: int = 0
    """Output of a micro-batch that is still being sent while the next one runs forward (torch 2.15)."""
    sends: int = 0
    """How many of them there may be."""
    output_gradient: int = 0
    """Received for each backward (torch 2.15)."""


NO_BORDER = Border()


def in_flight(rank: int, layout: Layout, micro_batches: int) -> float:
    """Return how many micro-batches' activations rank ``rank`` holds at most, in units of the whole rank.

    gpipe: all. 1f1b: the ranks after it plus itself (Narayanan et al. 2021, section 2.2). interleaved-1f1b: warm-up of
    2 (P - s - 1) + (v - 1) P chunks plus one, a chunk being 1/v of the rank (Megatron-core schedules.py). zero-bubble:
    as 1f1b (ZB-H1, Qi et al. 2023: same memory). dualpipe: P + 1 micro-batches on every rank (DeepSeek-V3 report, table
    2: activations PP + 1).
    """
    ways, v = layout.pipeline, max(1, layout.virtual_stages)
    schedule = layout.pipeline_schedule
    if ways == 1:
        return 1
    if schedule == "gpipe":
        return micro_batches
    if schedule == "interleaved-1f1b" and v > 1:
        chunks = 2 * (ways - rank - 1) + (v - 1) * ways + 1
        return min(chunks, micro_batches * v) / v
    if schedule == "dualpipe":
        return min(ways + 1, micro_batches)
    return min(ways - rank, micro_batches)


def walks_of(micro_batches: int, in_flight: float, apart: bool) -> list[tuple[bool, bool, float]]:
    """Return the micro-batches that differ, as (first, last, other micro-batches in flight during its backward).

    ``apart``: the last one differs from the second.
    """
    m, n = micro_batches, in_flight
    if m == 1:
        return [(True, True, 0)]
    walks = [(True, False, n - 1), (False, m == 2, max(0.0, min(n - 1, m - 2)))]
    return [*walks, (False, True, 0)] if m > 2 and apart else walks


def pairs_of(micro_batches: int, apart: bool) -> list[tuple[bool, bool, float]]:
    """Return the passes that differ, as (first of its pair, last of the step, other micro-batches alive then).

    The first backward is of the second pass, while both are alive. ``apart``: the last micro-batch differs from those
    in the middle.
    """
    found: list[tuple[bool, bool, float]] = []
    for last in (False,) * min(micro_batches - 1, 2 if apart else 1) + (True,):
        found += [(True, False, 1), (False, last, 0)]
    return found


def most_in_flight(layout: Layout) -> int:
    """Micro-batches beyond which no rank holds more of them; not for gpipe, which holds all there are.

    The first rank has the most: interleaved, 2 (P - 1) + (v - 1) P + 1 chunks of 1/v each, under 3 P whole ones.
    """
    return 3 * layout.pipeline


def fullest(job: TrainingJob, contents: Sequence[Hashable]) -> list[int]:
    """Return the pipeline ranks that may have the highest peak; of ranks with equal ``contents`` the first.

    No schedule keeps more micro-batches alive on a later rank (``in_flight``; Megatron's warm-up), and all else that
    two ranks with the same layers hold is the same, so that the first one's peak is at least as high. Where a setting
    depends on the number of a layer, or later ranks put off the gradients of weights, every rank is looked at.
    """
    by_number = job.freeze or job.checkpointing.every_n_layers > 1 or job.option("first_last_layers_bf16")
    if by_number or job.layout.pipeline_schedule in SPLIT:
        return list(range(len(contents)))
    first: dict[Hashable, int] = {}
    for rank, content in enumerate(contents):
        first.setdefault(content, rank)
    return list(first.values())
