"""What is tried before it becomes a remedy: parallel degrees, hardware, how a model is made and saved."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.estimate import Estimate
from memcheck.catalog.names import Gpu, GpuSize, gpu_sizes
from memcheck.job.framework import Framework
from memcheck.job.resolve import Resolved
from memcheck.job.training import shards_parameters
from memcheck.job.types import Evaluation, Layout, TrainingJob
from memcheck.memory.fit import FITS, gpu_fit, on_host, within
from memcheck.models.types import Architecture, Moe, Rough
from memcheck.plan.finding import OTHER_HARDWARE, OTHER_RESULT, SAME_RESULT
from memcheck.record import Record
from memcheck.rules.budget import gib
from memcheck.rules.types import RuleContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


UNCHANGED = 0
"""Cost of a change that keeps the result of the training, up to rounding, and the hardware."""
NUMERICS = 1
"""Cost of a change with other numerics (8-bit states, a quantised cache), which changes the result somewhat."""
METHOD = 2
"""Cost of a change that makes another experiment, such as adapters instead of full training, or shorter requests."""
HARDWARE = 3
"""Cost of a change that asks for more GPUs or for other GPUs."""


SAME, EQUIVALENT, OTHER = "none", "equivalent", "changes results"
"""What a change does to the numbers of the training: nothing; another order of the same sums; other results."""


class CandidateChange(Record):
    """A change of the plan that may help, or several at once."""

    kind: str
    """Changes of one kind are alternatives of each other."""
    title: str
    set: dict[str, Any]
    """Dotted plan keys, down to the field (``training.optimizer.name``), and their new values."""
    slowdown: float = 0.0
    """Relative loss of time, taken where no model gives it: for serving on GPUs whose rates are not known."""
    cost: int = UNCHANGED
    """What the change asks for in addition to time: UNCHANGED, NUMERICS, METHOD or HARDWARE."""
    numerics: str = SAME
    parts: tuple[CandidateChange, ...] = ()
    """The single changes of a combination."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of change that it is made of."""
        return tuple(part.kind for part in self.parts) if self.parts else (self.kind,)


def join(*candidates: CandidateChange) -> CandidateChange:
    """Return one change that sets the keys of several changes."""
    parts = tuple(part for each in candidates for part in (each.parts or (each,)))
    if len(parts) == 1:
        return parts[0]
    changes: dict[str, object] = {}
    slower = 1.0
    for part in parts:
        changes.update(part.set)
        slower *= 1 + part.slowdown
    return CandidateChange(
        kind="+".join(part.kind for part in parts),
        title="; ".join(part.title for part in parts),
        set=changes,
        slowdown=slower - 1,
        cost=max((part.cost for part in parts), default=UNCHANGED),
        numerics=max((part.numerics for part in parts), key=NUMERIC_ORDER.index, default=SAME),
        parts=parts,
    )


NUMERIC_ORDER = (SAME, EQUIVALENT, OTHER)


class Priced(Record):
    """A legal candidate with what the engine says about it."""

    candidate: CandidateChange
    changes: dict[str, Any]
    """Everything that is set, as the plan's author would write it, with what follows from the candidate."""
    resolved: Resolved
    estimate: Estimate
    slowdown: float | None
    """Relative time of a token against the plan as written; None where there is no model of it."""
    limit: float = 1.0
    """The share of the capacity that the plan may need."""
    role: str = ""
    """The role of the remedy among those that are offered: see :data:`memcheck.plan.finding.ROLES`."""

    @property
    def sure(self) -> bool:
        """Whether the changed plan fits with its whole interval, so that it is not uncertain (MEM104)."""
        if self.estimate.engine is not None:
            return gpu_fit(self.estimate, self.limit) == FITS
        return within(self.estimate.needed_interval_bytes[1], self.estimate.capacity_bytes, self.limit)

    @property
    def group(self) -> str:
        """The group of the remedy, by what it asks for: see :data:`memcheck.plan.finding.GROUPS`."""
        cost = self.candidate.cost
        return OTHER_HARDWARE if cost == HARDWARE else SAME_RESULT if cost == UNCHANGED else OTHER_RESULT

    @property
    def rank(self) -> tuple[int, float, float]:
        """The sort key of remedies, the cheapest first: cost, then time lost, then the utilization of the GPU."""
        return (*self.price, self.estimate.utilization)

    @property
    def price(self) -> tuple[int, float]:
        """The cost of the change and the time lost. Time gained counts as 0, so that a faster GPU is not preferred."""
        return self.candidate.cost, max(0.0, round(self.slowdown or 0.0, 3))


def degrees(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield sequence parallelism; a larger tensor degree within the node; context, pipeline and expert degrees;
    schedules.
    """
    framework, layout = context.framework, job.layout
    if framework is None:
        return
    able = framework.parallelism.degrees
    if layout.tensor > 1 and not layout.sequence and "sequence" in able:
        title = "split the residual stream over the tensor ranks (sequence parallelism)"
        yield CandidateChange("sequence", title, {"parallelism.sequence": True}, numerics=EQUIVALENT)
    if "tensor" in able:
        factor = 2
        while layout.tensor * factor <= layout.gpus_per_node:
            degree = layout.tensor * factor
            title = f"split every layer over {degree} GPUs of a node (tensor parallelism)"
            yield from _instead_of_data(job, "tensor", degree, factor, title)
            factor *= 2
    for factor in (2, 4, 8):
        if "context" in able:
            degree = layout.context * factor
            title = f"split each sequence over {degree} GPUs (context parallelism)"
            yield from _instead_of_data(job, "context", degree, factor, title)
    for factor in (2, 4, 8):
        if "pipeline" in able:
            stages = layout.pipeline * factor
            title = f"split the layers over {stages} pipeline stages"
            yield from _instead_of_data(job, "pipeline", stages, factor, title)
    yield from _schedules(framework, layout)
    if "expert" in able and (layout.expert > 1 or not framework.has_user_loop):  # a loop of one's own has it or has not
        for factor in (2, 4, 8, 16, 32, 64):
            degree = layout.expert * factor
            if degree > experts_of(job.architecture):
                break
            title = f"deal the experts out to {degree} ranks (expert parallelism)"
            yield CandidateChange("expert", title, {"parallelism.expert": degree}, numerics=EQUIVALENT)
    if framework.has_expert_tensor_groups:  # elsewhere experts are cut as the layers are, or not at all
        yield from _parts_of_experts(job)


def _parts_of_experts(job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield larger expert-tensor degrees within a node."""
    layout, width = job.layout, width_of(job.architecture)
    degree = layout.expert_tensor * 2
    while degree <= layout.gpus_per_node and width % degree == 0:
        title = f"split every expert over {degree} GPUs (expert-tensor parallelism)"
        yield CandidateChange("expert-tensor", title, {"parallelism.expert_tensor": degree}, numerics=EQUIVALENT)
        degree *= 2


def _schedules(framework: Framework, layout: Layout) -> Iterator[CandidateChange]:
    """Yield schedules of a pipeline that keep fewer micro-batches in flight, and more stages on each rank."""
    if layout.pipeline == 1:
        return
    one: dict[str, object] = {} if layout.virtual_stages == 1 else {"parallelism.virtual_stages": 1}
    for schedule, words in (("zero-bubble", "as zero-bubble"), ("1f1b", "as 1F1B")):
        if schedule in framework.parallelism.schedules and schedule != layout.pipeline_schedule:
            title = f"run the pipeline {words}{', one stage on each rank' if one else ''}"
            change = {"parallelism.pipeline_schedule": schedule, **one}
            yield CandidateChange("schedule", title, change, numerics=EQUIVALENT)
    if layout.virtual_stages > 1:
        stages = layout.virtual_stages * 2
        title = f"split the layers of each pipeline rank over {stages} stages"
        yield CandidateChange("schedule", title, {"parallelism.virtual_stages": stages}, numerics=EQUIVALENT)


def experts_of(model: Architecture | Rough) -> int:
    """Return experts of the largest mixture; 1 without any."""
    if not isinstance(model, Architecture):
        return 1
    return max((block.mlp.experts for block, _ in model.blocks if isinstance(block.mlp, Moe)), default=1)


def width_of(model: Architecture | Rough) -> int:
    """Return width of one expert of the first mixture; 1 without any."""
    if not isinstance(model, Architecture):
        return 1
    return next((block.mlp.width for block, _ in model.blocks if isinstance(block.mlp, Moe)), 1)


def _instead_of_data(job: TrainingJob, name: str, degree: int, factor: int, title: str) -> Iterator[CandidateChange]:
    """Take ranks from data parallelism and accumulate over as many more micro-batches."""
    if job.layout.data % factor == 0:
        yield CandidateChange(name, title, {f"parallelism.{name}": degree}, numerics=EQUIVALENT)


MOST_GPUS = 3
"""Larger GPUs that are tried, smallest first."""
ABOUT = 0.98
"""The need depends little on the GPU (context, workspaces): what is clearly too small is not tried."""


def larger_gpus(context: RuleContext) -> Iterator[CandidateChange]:
    """Yield GPUs of the same maker with more memory, one of each size, in nodes that are at least as large."""
    now, estimate = context.resolved.gpu, context.estimate
    least = now.memory_bytes * 1.05
    if estimate is not None:
        least = max(least, ABOUT * estimate.needed_bytes / min(context.fail_above, 1.0))
    seen: set[int] = set()
    for gpu in sorted(gpu_sizes(), key=lambda g: (g.memory_bytes, -(g.bf16_tflops or 0))):
        size = round(gpu.memory_bytes / 2**30 / 4)
        if gpu.memory_bytes < least or size in seen or not _same_kind(gpu, now):
            continue
        if (gpu.gpus_per_node or 1) < min(context.layout.gpus_per_node, now.gpus_per_node or 8):
            continue
        seen.add(size)
        title = f"use {gpu.name} with {gib(gpu.memory_bytes)} each"
        slower = _relative_time(gpu, now) if context.training is None else 0.0
        yield CandidateChange(
            "gpu", title, {"hardware.gpu": gpu.name}, slowdown=slower, cost=HARDWARE, numerics=EQUIVALENT
        )
        if len(seen) == MOST_GPUS:
            return


def _same_kind(gpu: GpuSize, now: Gpu) -> bool:
    """Whether both GPUs are of one maker. A GPU known only by the plan's figures counts as one of NVIDIA."""
    return (gpu.arch or "")[:3] == (now.arch or "sm_")[:3]


def _relative_time(gpu: GpuSize, now: Gpu) -> float:
    """Return how much longer a step takes by the rates of bf16 arithmetic; negative = faster."""
    if not gpu.bf16_tflops or not now.bf16_tflops:
        return 0.0
    return round(now.bf16_tflops / gpu.bf16_tflops - 1, 3)


def more_nodes(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield twice and four times the nodes, when a ZeRO stage makes the shards smaller; the global batch stays."""
    layout = job.layout
    if not layout.zero_stage or layout.shard_group < layout.data * layout.context:
        return
    for factor in (2, 4):
        title = f"shard over {layout.nodes * factor} nodes instead of {layout.nodes}"
        yield CandidateChange(
            "nodes", title, {"hardware.nodes": layout.nodes * factor}, slowdown=0.0, cost=HARDWARE, numerics=EQUIVALENT
        )


TITLES = {
    "rank0": "load in one process of a node, and send the others their share",
    "meta": "build on the meta device, and give memory to the shards only",
    "host": "make the parameters in host memory (--use-cpu-initialization)",
}

QUANTISED = {
    "rank0": "quantise in one process of a node, in host memory, and send the others their share",
    "host": "quantise layer by layer, and keep the model in host memory until it is sharded",
}
"""What loaders do with a 4-bit model that is to be sharded."""


def loading_and_saving(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield candidates for the moments before and after the steps that exceed the memory of a GPU or of a node."""
    moments, framework = critical(context), context.framework
    if framework is None:
        return
    if moments & {"load", "init"} and job.base_format:
        if framework.runs_transformers and shards_parameters(job.layout, framework):
            for place, title in QUANTISED.items():
                if place != job.initialization.place:
                    yield CandidateChange("initialization", title, {"training.initialization.place": place})
    elif moments & {"load", "init"}:
        for place in framework.load_and_save.other_places:
            if place != job.initialization.place:
                yield CandidateChange("initialization", TITLES[place], {"training.initialization.place": place})
    if "save" in moments:
        yield from _saving(job, framework)
    if "evaluation" in moments and job.evaluation is not None:
        yield from _evaluating(job.evaluation)
    if "step" in moments:
        yield from _keeping(job, framework)


def _keeping(job: TrainingJob, framework: Framework) -> Iterator[CandidateChange]:
    """Less that is offloaded: only where a node lacks memory while the steps run."""
    if job.optimizer.offload == "cpu" and "nvme" in framework.offload_places:
        title = "keep the optimizer states on the NVMe drives of the node"
        yield CandidateChange("offload", title, {"training.optimizer.offload": "nvme"}, numerics=EQUIVALENT)
    if job.parameter_offload == "cpu" and "nvme" in framework.offload_places:
        title = "keep the sharded parameters on the NVMe drives of the node"
        yield CandidateChange("offload-parameters", title, {"training.offload.parameters": "nvme"}, numerics=EQUIVALENT)
    if job.optimizer.offload != "none":
        title = "keep the optimizer states on the GPU"
        yield CandidateChange("offload", title, {"training.optimizer.offload": "none"}, numerics=EQUIVALENT)
    if job.parameter_offload != "none":
        title = "keep the sharded parameters on the GPU"
        yield CandidateChange("offload-parameters", title, {"training.offload.parameters": "none"}, numerics=EQUIVALENT)


def _saving(job: TrainingJob, framework: Framework) -> Iterator[CandidateChange]:
    """Yield changes that need less memory while a checkpoint is saved."""
    checkpoint = job.checkpoint
    if checkpoint.offload == "none":
        title = "gather to the memory of rank 0's node, tensor by tensor"
        yield CandidateChange("gathering", title, {"training.checkpoint.offload": "cpu"})
    if checkpoint.state_dict == "full" and job.layout.zero_stage >= 2 and framework.load_and_save.either_state_dict:
        title = "save every rank's part (a sharded state dict)"
        yield CandidateChange("checkpoint", title, {"training.checkpoint.state_dict": "sharded"})
    if checkpoint.asynchronous:
        yield CandidateChange("asynchronous", "save while training waits", {"training.checkpoint.asynchronous": False})
    elif checkpoint.optimizer:
        title = "save the model without the optimizer states, from which training cannot resume"
        yield CandidateChange("saved-states", title, {"training.checkpoint.optimizer": False})


def _evaluating(evaluation: Evaluation) -> Iterator[CandidateChange]:
    """Yield smaller batches of the evaluation, which move no result."""
    size = evaluation.micro_batch_size
    while size > 1:
        size //= 2
        title = f"evaluate {size} {'sequence' if size == 1 else 'sequences'} at a time"
        yield CandidateChange("evaluation", title, {"training.evaluation.micro_batch_size": size})


def critical(context: RuleContext) -> set[str]:
    """Return the instant of the GPU's peak, others that exceed the limit, and those for which a node has too little
    memory.
    """
    estimate = context.estimate
    if estimate is None:
        return set()
    host = context.host_bytes
    beside = estimate.needed_bytes - estimate.allocated_bytes
    allowed = context.plan.policy.fail_above or context.fail_above  # a search for more room asks for less
    limit = int(estimate.capacity_bytes * min(allowed, 1.0))
    above = {i.name for rank in estimate.ranks for i in rank.instants if i.allocated_bytes + beside > limit}
    lacking = {moment.name for moment in estimate.host_moments if not on_host(moment.bytes, host)}
    return {estimate.instant, *above, *lacking}
