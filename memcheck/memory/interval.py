"""The 95 % interval of device bytes.

The lower end is what ``allocated`` may be too high by, with nothing on top: a reading of
``torch.cuda.max_memory_allocated()`` lies above it. The upper end, on which rule MEM104 decides, adds to the prediction
what ``allocated`` may be too low by and what the allocator may keep beyond its median (independent of each other, so
added in quadrature), and what context and communicators were seen to take beyond their formulas. It takes the largest
error seen on plans of that kind, not a quantile: a plan that is called safe and fails costs more than a warning.

What the allocator keeps only while there is room does not stand in the way of a plan: where the upper end lies beyond
the GPU's capacity, it is that of the smallest GPU on which the step still ran, but not below the capacity.
"""

from __future__ import annotations

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.memory.overhead import allocator_group
from memcheck.memory.residuals import COMPILED, SMALL_BYTES, Residuals, look_up, residuals
from memcheck.models.types import Architecture, Moe


def interval(
    job: TrainingJob | InferenceJob,
    allocated: int,
    device: int,
    capacity: int | None = None,
    outside: int | None = None,
) -> tuple[int, int]:
    """Lower and upper end, in bytes.

    ``capacity``: of the GPU; None for one without end. ``outside``: what of ``device`` is not the allocator's; None
    when that is not known.
    """
    outside = device - allocated if outside is None else outside
    return ends(residuals(), interval_groups(job), allocated, outside, capacity)


def interval_groups(job: TrainingJob | InferenceJob) -> tuple[str, str]:
    """The kind of error and the kind of allocation of a plan, whatever its batch."""
    return error_group(job), allocator_group(job)


def ends(
    tables: Residuals, groups: tuple[str, str], allocated: int, outside: int, capacity: int | None
) -> tuple[int, int]:
    """The interval from given tables, for a plan of some kind of error and some kind of allocation."""
    _, own = look_up(tables.allocated, groups[0])
    _, free = look_up(tables.reserved, groups[1])
    base = max(allocated, SMALL_BYTES)
    short = max(0.0, own.high - 1) * base / max(1, allocated)
    around = int(outside * max(1.0, tables.outside.high))
    high = around + int(allocated * (free.median + _together(short, free.high - free.median)))
    if capacity is not None and high > capacity:
        _, tight = look_up(tables.tight, groups[1])
        needed = around + int(allocated * (tight.median + _together(short, tight.high - tight.median)))
        high = min(high, max(needed, capacity))
    return max(0, allocated - int(base * max(0.0, 1 - own.low))), high


def _together(a: float, b: float) -> float:
    return float((a * a + max(0.0, b) ** 2) ** 0.5)


def interval_basis(job: TrainingJob | InferenceJob) -> tuple[str, int]:
    """Which errors the interval rests on, and on how many cases."""
    tables, group = residuals(), error_group(job)
    errors, own = look_up(tables.allocated, group)
    kept, allocator = look_up(tables.reserved, allocator_group(job))
    return f"{errors}; allocator: {kept}", min(own.n, allocator.n)


def error_group(job: TrainingJob | InferenceJob) -> str:
    """``family/kind`` under which a plan's errors are recorded; compiled steps are a family of their own."""
    if isinstance(job, InferenceJob):
        return "inference/serving"
    family = FRAMEWORKS[job.framework].errors_as or job.framework
    if str(job.option("module", "")).startswith("graph_trainer"):
        family = "graph_trainer"  # an experiment of torchtitan's, which keeps what its own passes decide
    return f"{COMPILED}{family}" if job.compiles("model") else f"{family}/{_kind(job)}"


def _kind(job: TrainingJob) -> str:
    layout = job.layout
    if job.method in ("lora", "qlora"):
        return job.method
    if FRAMEWORKS[job.framework].errors_by_model:
        return "mixture of experts" if has_experts(job) else "dense"
    if layout.pipeline > 1:
        return "pipeline"
    if layout.tensor > 1:
        return "tensor"
    if layout.zero_stage >= 2:
        return "sharded"
    return "replicated" if layout.world_size > 1 else "single"


def has_experts(job: TrainingJob | InferenceJob) -> bool:
    """Any block with routed experts."""
    architecture = job.architecture
    return isinstance(architecture, Architecture) and any(isinstance(b.mlp, Moe) for b, _ in architecture.blocks)
