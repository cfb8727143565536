"""Changes of one degree of parallelism that keep the GPUs and the global batch."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.framework import Framework
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture, Moe, Rough
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.types import EQUIVALENT, CandidateChange


def degrees(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Sequence parallelism; a larger tensor degree within the node; context, pipeline and expert degrees; schedules."""
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
    if "expert" in able and (layout.expert > 1 or not framework.own_loop):  # a loop of one's own has it or has not
        for factor in (2, 4, 8, 16, 32, 64):
            degree = layout.expert * factor
            if degree > experts_of(job.architecture):
                break
            title = f"deal the experts out to {degree} ranks (expert parallelism)"
            yield CandidateChange("expert", title, {"parallelism.expert": degree}, numerics=EQUIVALENT)
    if framework.own_expert_groups:  # elsewhere experts are cut as the layers are, or not at all
        yield from _parts_of_experts(job)


def _parts_of_experts(job: TrainingJob) -> Iterator[CandidateChange]:
    """Larger expert-tensor degrees within a node."""
    layout, width = job.layout, width_of(job.architecture)
    degree = layout.expert_tensor * 2
    while degree <= layout.gpus_per_node and width % degree == 0:
        title = f"split every expert over {degree} GPUs (expert-tensor parallelism)"
        yield CandidateChange("expert-tensor", title, {"parallelism.expert_tensor": degree}, numerics=EQUIVALENT)
        degree *= 2


def _schedules(framework: Framework, layout: Layout) -> Iterator[CandidateChange]:
    """Schedules of a pipeline that keep fewer micro-batches in flight, and more stages on each rank."""
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
    """Experts of the largest mixture; 1 without any."""
    if not isinstance(model, Architecture):
        return 1
    return max((block.mlp.experts for block, _ in model.blocks if isinstance(block.mlp, Moe)), default=1)


def width_of(model: Architecture | Rough) -> int:
    """Width of one expert of the first mixture; 1 without any."""
    if not isinstance(model, Architecture):
        return 1
    return next((block.mlp.width for block, _ in model.blocks if isinstance(block.mlp, Moe)), 1)


def _instead_of_data(job: TrainingJob, name: str, degree: int, factor: int, title: str) -> Iterator[CandidateChange]:
    """Take ranks from data parallelism and accumulate over as many more micro-batches."""
    if job.layout.data % factor == 0:
        yield CandidateChange(name, title, {f"parallelism.{name}": degree}, numerics=EQUIVALENT)
