"""The difference between allocated and device bytes, item by item, each with its source: for output with formulas.

The measured cases that an interval is based on, to explain it, and a job's interval from the tables as they are
stored.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Formula, Pools, RankEstimate
from memcheck.catalog.names import Gpu
from memcheck.job.types import InferenceJob, Overhead, TrainingJob
from memcheck.memory.allocator import allocator_bytes, allocator_group, look_up, residuals, shares, stuck_group
from memcheck.memory.interval import Intervals, PlanFigures, ends, error_group, interval_kinds
from memcheck.memory.overhead import NO_POOLS, communicator_terms, context_terms, library_terms, room
from memcheck.record import Record

FRAGMENTATION, CACHE = "allocator, fragmentation", "allocator, cache"
"""Names of the allocator's two terms."""


class OverheadTerm(Record):
    """One part of the difference between allocated and device bytes, with its source, for ``--formulas``."""

    name: str
    bytes: int
    source: str
    component: str
    """``fragmentation`` | ``context_and_nccl``."""


def items(
    job: TrainingJob | InferenceJob, gpu: Gpu, overhead: Overhead, allocated: int, pools: Pools = NO_POOLS
) -> tuple[OverheadTerm, ...]:
    """List the terms of one rank's overhead in bytes: fragmentation, cache, context, libraries, communicators.

    ``allocated``: bytes of live tensors at the peak. A plan's flat overhead is one term in place of all.
    """
    if overhead.kind == "flat":
        source = f"the plan's policy: {overhead.fraction:.0%} of allocated"
        return (
            OverheadTerm(
                name="flat overhead",
                bytes=int(allocated * overhead.fraction),
                source=source,
                component="context_and_nccl",
            ),
        )
    outside = _outside(job, gpu)
    left = room(gpu, sum(term.bytes for term in outside), allocated)
    terms = (*allocator_terms(job, allocated, left, pools), *outside)
    return tuple(term for term in terms if term.bytes)


def _outside(job: TrainingJob | InferenceJob, gpu: Gpu) -> tuple[OverheadTerm, ...]:
    """List the terms outside the caching allocator: context, libraries, communicators."""
    outside = (*context_terms(gpu), *library_terms(job, gpu), *communicator_terms(job, gpu))
    return tuple(OverheadTerm(*t, "context_and_nccl") for t in outside)


def allocator_terms(
    job: TrainingJob | InferenceJob, allocated: int, room: int, pools: Pools = NO_POOLS
) -> tuple[OverheadTerm, OverheadTerm]:
    """Return the bytes that the caching allocator holds beyond live blocks: its fragmentation, and its cache.

    Fragmentation, the free parts of segments that are in use, is a measured ratio of ``allocated``. Cache, whole
    segments that are free, is returned to the driver before an allocation fails. It is the rest of what the allocator
    was measured to hold with memory to spare, and no more than there is ``room`` for in bytes.
    """
    allocator_shares = shares(job)
    held = allocator_bytes(allocator_shares, allocated, room, pools)
    where = f"({allocator_group(job)}; docs/internals/accuracy.md)"
    stuck_ratio = allocator_shares.stuck_of(allocated, pools)
    held_ratio = allocator_shares.held_of(allocated, pools)
    fixed = (
        f"{stuck_ratio.median - 1:.1%} of allocated, which cannot be returned: median of {stuck_ratio.n} steps {where}"
    )
    apart = f" and of {pools.apart:,} bytes that the pools of other streams held before or after" if pools.apart else ""
    spare = (
        f"up to {held_ratio.median - 1:.1%} of allocated{apart} with the fragmentation, as far as the GPU has room; "
        f"returned before an allocation fails: median of {held_ratio.n} steps {where}"
    )
    return (
        OverheadTerm(name=FRAGMENTATION, bytes=held.stuck, source=fixed, component="fragmentation"),
        OverheadTerm(name=CACHE, bytes=held.cache, source=spare, component="fragmentation"),
    )


def formulas_of(
    job: TrainingJob | InferenceJob, gpu: Gpu, overhead: Overhead, rank: RankEstimate
) -> tuple[Formula, ...]:
    """Return one formula per term between a rank's allocated bytes and its device bytes."""
    return tuple(
        Formula(t.component, t.name, "beyond the live tensors of the step", bytes=t.bytes, source=t.source)
        for t in items(job, gpu, overhead, rank.peak.allocated_bytes, rank.pools)
    )


def intervals(job: TrainingJob | InferenceJob, held: PlanFigures, capacity: int | None) -> Intervals:
    """Return the intervals, in bytes, of what a plan needs and of what ``nvidia-smi`` would show.

    ``held``: the plan's predicted figures. ``capacity``: bytes of the GPU; None: no limit.
    """
    return ends(residuals(), interval_kinds(job), held, capacity)


def interval_basis(job: TrainingJob | InferenceJob) -> tuple[str, int]:
    """Return the names of the measured groups that the interval of needed bytes is based on, and their fewest cases."""
    tables, group = residuals(), error_group(job)
    errors = look_up(tables.allocated, group, by_method=True)
    allocator = look_up(tables.tight, stuck_group(allocator_group(job)))
    return f"{errors.groups}; allocator: {allocator.groups}", min(errors.spread.n, allocator.spread.n)
