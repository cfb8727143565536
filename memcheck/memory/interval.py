"""95 % intervals of ``needed`` and of *seen* device bytes.

Both take in what ``allocated`` may be off by, what the allocator was seen to hold around its median (independent, so
added in quadrature), and what context and communicators took against their formulas. The ends are the largest errors
seen, not quantiles: a plan that is called safe and fails costs more than a warning.

- ``needed`` is based on what the allocator cannot return. Rules MEM101 to MEM104 decide on it and on its upper end.
- *Seen* is based on what it holds with memory to spare. It ends at the capacity unless the plan needs more; where rows
  of many lengths fill the cache, always there. No end lies below that of ``needed``: what cannot be returned is seen.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Pools
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.memory.allocator import (
    COMPILED,
    ENOUGH,
    LENGTHS_VARY,
    SMALL_BYTES,
    Residuals,
    Shares,
    Spread,
    allocator_group,
    blocks_group,
    has_experts,
    look_up,
    remainder_group,
    shares_of,
    what_trains,
)
from memcheck.memory.overhead import OutsideBytes
from memcheck.record import Record

SHARDED_APART = ", sharded"
"""In the kind of steps over a 4-bit base that FSDP cuts: what holds a weight whole is another than on one GPU."""


class Kinds(Record):
    """Names of the groups of measured cases that give a plan's intervals their width; the batch does not matter."""

    errors: str
    """Group of errors of ``allocated``, as :func:`error_group` names it."""
    allocator: str
    """Group of the allocator's shares, as :func:`memcheck.memory.allocator.allocator_group` names it."""
    remainder: str = ""
    """Group of needs compared with the step's largest block; empty: none was replayed for such a plan."""
    blocks: str = ""
    """Group of the least share of the largest block that cannot be returned; empty: no such group."""
    releases: tuple[float, float] = (0.0, 0.0)
    """Shares by which a stated release that is not the modelled one, or an unread base, may need less, and more."""


class Intervals(Record):
    """The 95 % intervals of one plan: lower and upper end of needed and of seen bytes."""

    needed: tuple[int, int]
    seen: tuple[int, int]


class PlanFigures(Record):
    """The figures of one plan that its intervals lie around, in bytes."""

    allocated: int
    """Predicted peak of live tensors, in bytes."""
    outside: OutsideBytes
    pools: Pools = Pools()


def interval_kinds(job: TrainingJob | InferenceJob) -> Kinds:
    """Return the names of the groups of measured cases that a plan's intervals are based on."""
    return Kinds(
        errors=error_group(job),
        allocator=allocator_group(job),
        remainder=remainder_group(job),
        blocks=blocks_group(job),
        releases=_releases(job),
    )


def _releases(job: TrainingJob | InferenceJob) -> tuple[float, float]:
    """Return the shares by which a step may need less, and more, than that of the release or base that is modelled."""
    if isinstance(job, InferenceJob):
        return 0.0, 0.0
    less, more = job.framework.compiled_releases(job.framework_version) if job.compiles("model") else (0.0, 0.0)
    return less, max(more, job.unread_share)


def ends(tables: Residuals, kinds: Kinds, figures: PlanFigures, capacity: int | None) -> Intervals:
    """Compute the 95 % intervals of a plan's needed bytes, and of the bytes that ``nvidia-smi`` would show (seen).

    ``tables``: measured errors and shares. ``kinds``: the plan's groups in them. ``figures``: the predicted bytes.
    ``capacity``: usable bytes of the GPU, above which nothing is seen unless the plan needs it; None: no limit.
    """
    allocated = figures.allocated
    errors = _live_errors(tables, kinds, allocated)
    shares = shares_of(tables, kinds.allocator)
    outside = figures.outside.ends(tables)
    unreturnable = unreturnable_ratio_interval(tables, kinds, figures, shares)
    needed_low, needed_high = _interval_bytes(unreturnable, errors, allocated, outside)
    # reserved bytes are a ratio of live bytes and the other streams' pools; only the former have the errors above
    reserved_base = allocated + figures.pools.apart
    live_share = allocated / max(1, reserved_base)
    reserved_errors = RelativeErrors(below=errors.below * live_share, above=errors.above * live_share)
    held = shares.held_of(allocated, figures.pools)
    seen_low, seen_high = _interval_bytes(held, reserved_errors, reserved_base, outside)
    if capacity is not None:  # nothing above the capacity is seen, unless the plan needs it
        seen_low = min(seen_low, capacity)
        # rows of new lengths make segments of their own: 48 steps held up to 3.7 times what is live
        seen_high = capacity if LENGTHS_VARY in kinds.allocator else min(seen_high, capacity)
    seen = (max(seen_low, needed_low), max(seen_high, needed_high))
    return Intervals(needed=(needed_low, needed_high), seen=seen)


class RelativeErrors(Record):
    """How much less and more than predicted was measured, as shares of the prediction."""

    below: float
    above: float


def _live_errors(tables: Residuals, kinds: Kinds, allocated: int) -> RelativeErrors:
    """Return the largest errors that were measured for plans of this kind, relative to ``allocated`` live bytes.

    Errors are stored relative to SMALL_BYTES at least. A stated release that is not the modelled one may widen them.
    """
    error = look_up(tables.allocated, kinds.errors, by_method=True).spread
    scale = max(allocated, SMALL_BYTES) / max(1, allocated)
    release_low, release_high = kinds.releases
    return RelativeErrors(
        below=max(release_low, (1 - error.low) * scale), above=max(release_high, (error.high - 1) * scale)
    )


def unreturnable_ratio_interval(tables: Residuals, kinds: Kinds, figures: PlanFigures, shares: Shares) -> Spread:
    """Return the ratio to ``allocated`` of bytes that the allocator holds and cannot return: low, median and high.

    The largest block of the step widens it (:func:`_widened_by_block`). The higher of two moments counts: the
    optimizer's step, or the highest moment outside it.
    """
    pools, allocated = figures.pools, max(1, figures.allocated)
    live_outside_optimizer = pools.before or allocated
    largest_block = pools.largest / live_outside_optimizer
    outside_optimizer = _widened_by_block(tables, kinds, largest_block, shares.stuck_outside_optimizer(pools))
    return shares.stuck_at_higher(allocated, pools, outside_optimizer)


def _widened_by_block(tables: Residuals, kinds: Kinds, block: float, stuck: Spread) -> Spread:
    """Widen the interval of the allocator's bytes that cannot be returned by the largest block of the step.

    In replays the allocator kept at most one more block as large as the step's largest. ``stuck``: low, median and high
    of these bytes over live bytes, without what segments of resident blocks leave. ``block``: bytes of the step's
    largest block over live bytes; 0: not known, and ``stuck`` is returned as it is.
    """
    remainder, share = tables.beyond.get(kinds.remainder), tables.blocks.get(kinds.blocks)
    if remainder is None or remainder.n < ENOUGH or not block:
        return stuck
    low, high = stuck.low, block + remainder.high
    if share is not None and share.n >= ENOUGH:  # steps that gather twice never return a share of the largest block
        never_returned_low, never_returned_high = block * (share.low - 1), block * (share.high - 1)
        low = max(low, 1 + never_returned_low)
        high = min(high, 1 + never_returned_high)
    if what_trains(kinds.remainder):  # adapters alone never left a whole block
        high = min(high, stuck.high)
    return stuck._replace(low=min(stuck.median, low), high=max(stuck.median, high))


def _interval_bytes(share: Spread, errors: RelativeErrors, live: int, outside: tuple[int, int]) -> tuple[int, int]:
    """Compute both ends of an interval in bytes: predicted live bytes, the allocator's share, and bytes outside it.

    ``share``: ratio of the allocator's bytes to live ones. ``errors``: of live bytes. ``live``: predicted live bytes.
    ``outside``: lowest and highest bytes outside the allocator. Errors of live bytes and of the share are independent,
    and so added in quadrature.
    """
    outside_low, outside_high = outside
    # live bytes are part of the allocator's, so that the ratio is never below 1
    below = _in_quadrature(errors.below, share.median - max(1.0, share.low))
    above = _in_quadrature(errors.above, share.high - share.median)
    low = outside_low + int(live * (share.median - below))
    high = outside_high + int(live * (share.median + above))
    return max(0, low), high


def _in_quadrature(error: float, spread: float) -> float:
    """Add two independent relative errors in quadrature; a negative ``spread`` counts as 0."""
    return float((error * error + max(0.0, spread) ** 2) ** 0.5)


def error_group(job: TrainingJob | InferenceJob) -> str:
    """Name the group of measured errors that a plan belongs to: ``family/kind``, such as ``huggingface/sharded``.

    The family is the framework. Compiled steps are a family of their own.
    """
    if isinstance(job, InferenceJob):
        return "inference/serving"
    family = job.framework.measured_as or job.framework.name
    if str(job.option("module", "")).startswith("graph_trainer"):
        family = "graph_trainer"  # an experiment of torchtitan's, which keeps what its own passes decide
    return f"{COMPILED}{family}" if job.compiles("model") else f"{family}/{_kind(job)}"


def _kind(job: TrainingJob) -> str:
    """Name the kind of a training job within its framework's measured errors: by adapters, model or parallelism."""
    layout = job.layout
    if job.method in ("lora", "qlora"):
        shards_quantised = job.method == "qlora" and layout.zero_stage >= 2 and layout.shard_group > 1
        return f"{job.method}{SHARDED_APART if shards_quantised else ''}"
    if job.framework.errors_by_model:
        if has_experts(job):
            return "mixture of experts"
        return "dense, compiled loss" if _compiles_loss(job) else "dense"
    if layout.pipeline > 1:
        return "pipeline"
    if layout.tensor > 1:
        return "tensor"
    if layout.zero_stage >= 2:
        return "sharded"
    return "replicated" if layout.world_size > 1 else "single"


def _compiles_loss(job: TrainingJob) -> bool:
    """Say whether the loss is Megatron's fused cross entropy, which the first step compiles (core/jit.py)."""
    native = job.option("cross_entropy_fusion_impl", "native") == "native"
    return native and bool(job.option("cross_entropy_loss_fusion"))
