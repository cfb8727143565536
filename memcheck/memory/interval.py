"""95 % intervals of ``needed`` and of *seen* device bytes.

Both take in what ``allocated`` may be off by, what the allocator was seen to hold around its median (independent, so
added in quadrature), and what context and communicators took against their formulas. The ends are the largest errors
seen, not quantiles: a plan that is called safe and fails costs more than a warning.

- ``needed`` is based on what the allocator cannot return. Rules MEM101 to MEM104 decide on it and on its upper end.
- *Seen* is based on what it holds with memory to spare. It ends at the capacity unless the plan needs more. No end
  lies below that of ``needed``: what cannot be returned is seen.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Pools
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.memory.allocator import (
    Shares,
    allocator_group,
    blocks_group,
    has_experts,
    remainder_group,
    shares_of,
    what_trains,
)
from memcheck.memory.outside import OutsideBytes
from memcheck.memory.residuals import COMPILED, ENOUGH, SMALL_BYTES, Residuals, Spread, look_up
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
    """Shares by which a stated release that is not the modelled one may need less, and more."""


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
    """Return the shares by which a stated release may need less and more than the modelled one; 0 for eager steps."""
    if isinstance(job, InferenceJob) or not job.compiles("model"):
        return 0.0, 0.0
    return job.framework.compiled_releases(job.framework_version)


def ends(tables: Residuals, kinds: Kinds, figures: PlanFigures, capacity: int | None) -> Intervals:
    """Compute the 95 % intervals of needed and seen bytes of a plan.

    ``tables``: measured errors and shares. ``kinds``: the plan's groups in them. ``figures``: the predicted bytes.
    ``capacity``: usable bytes of the GPU, above which nothing is seen unless the plan needs it; None: no limit.
    """
    allocated = figures.allocated
    error = look_up(tables.allocated, kinds.errors, by_method=True)[1]
    shares = shares_of(tables, kinds.allocator)
    scale = max(allocated, SMALL_BYTES) / max(1, allocated)
    release_low, release_high = kinds.releases
    off = max(release_low, (1 - error.low) * scale), max(release_high, (error.high - 1) * scale)
    around = figures.outside.ends(tables)
    needed = _ends(stuck_between(tables, kinds, figures, shares), off, allocated, around)
    held_live = allocated + figures.pools.apart
    held_off = off[0] * allocated / max(1, held_live), off[1] * allocated / max(1, held_live)
    low, high = _ends(shares.held_of(allocated, figures.pools), held_off, held_live, around)
    if capacity is not None:
        low, high = min(low, max(capacity, needed[0])), min(high, max(capacity, needed[1]))
    return Intervals(needed, (max(low, needed[0]), max(high, needed[1])))


def stuck_between(tables: Residuals, kinds: Kinds, figures: PlanFigures, shares: Shares) -> Spread:
    """Return the ratio to ``allocated`` of bytes that the allocator holds and cannot return: low, median and high.

    At the upper end that is one more block as large as the step's largest, and a remainder. Adapters leave less.
    Sharded steps that gather twice leave a share of that block at least. A step that is highest in the optimizer has
    less stuck there, and no less than its highest other moment needs.
    """
    pools, allocated = figures.pools, max(1, figures.allocated)
    spread = _of_block(tables, kinds, pools.largest / (pools.before or allocated), shares.before(pools))
    return shares.higher(allocated, pools, spread)


def _of_block(tables: Residuals, kinds: Kinds, block: float, stuck: Spread) -> Spread:
    """Widen the interval of the allocator's bytes that cannot be returned by the largest block of the step.

    In replays the allocator kept at most one more block as large as the step's largest. ``stuck``: low, median and high
    of these bytes over live bytes, without what segments of resident blocks leave. ``block``: bytes of the step's
    largest block over live bytes; 0: not known, and ``stuck`` is returned as it is.
    """
    remainder, share = tables.beyond.get(kinds.remainder), tables.blocks.get(kinds.blocks)
    if remainder is None or remainder.n < ENOUGH or not block:
        return stuck
    high, low = block + remainder.high, stuck.low
    if share is not None and share.n >= ENOUGH:
        high = min(high, 1 + block * (share.high - 1))
        low = max(low, 1 + block * (share.low - 1))
    if what_trains(kinds.remainder):
        high = min(high, stuck.high)
    return stuck._replace(low=min(stuck.median, low), high=max(stuck.median, high))


def _ends(share: Spread, off: tuple[float, float], live: int, outside: tuple[int, int]) -> tuple[int, int]:
    """Compute both ends of an interval in bytes: predicted live bytes, the allocator's share, and bytes outside it.

    ``share``: ratio of the allocator's bytes to live ones. ``off``: relative errors of live bytes, below and above.
    ``live``: predicted live bytes. ``outside``: lowest and highest bytes outside the allocator. Errors of live bytes
    and of the share are independent, and so added in quadrature.
    """
    low = outside[0] + int(live * (share.median - _together(off[0], share.median - max(1.0, share.low))))
    high = outside[1] + int(live * (share.median + _together(off[1], share.high - share.median)))
    return max(0, low), high


def _together(error: float, spread: float) -> float:
    """Add two independent relative errors in quadrature; a negative ``spread`` counts as 0."""
    return float((error * error + max(0.0, spread) ** 2) ** 0.5)


def error_group(job: TrainingJob | InferenceJob) -> str:
    """``family/kind`` under which a plan's errors are recorded; compiled steps are a family of their own."""
    if isinstance(job, InferenceJob):
        return "inference/serving"
    family = job.framework.measured_as or job.framework.name
    if str(job.option("module", "")).startswith("graph_trainer"):
        family = "graph_trainer"  # an experiment of torchtitan's, which keeps what its own passes decide
    return f"{COMPILED}{family}" if job.compiles("model") else f"{family}/{_kind(job)}"


def _kind(job: TrainingJob) -> str:
    """Name the kind of a training job within its framework's errors: its adapters, or how it is parallelised."""
    layout = job.layout
    if job.method in ("lora", "qlora"):
        apart = job.method == "qlora" and layout.zero_stage >= 2 and layout.shard_group > 1
        return f"{job.method}{SHARDED_APART if apart else ''}"
    if job.framework.errors_by_model:
        return "mixture of experts" if has_experts(job) else "dense, compiled loss" if _compiles_loss(job) else "dense"
    if layout.pipeline > 1:
        return "pipeline"
    if layout.tensor > 1:
        return "tensor"
    if layout.zero_stage >= 2:
        return "sharded"
    return "replicated" if layout.world_size > 1 else "single"


def _compiles_loss(job: TrainingJob) -> bool:
    """Whether the loss is Megatron's fused cross entropy, which the first step compiles (core/jit.py)."""
    native = job.option("cross_entropy_fusion_impl", "native") == "native"
    return native and bool(job.option("cross_entropy_loss_fusion"))
