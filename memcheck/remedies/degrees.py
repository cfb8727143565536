"""Changes of the degrees of parallelism that keep the GPUs and the global batch."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import TrainingJob
from memcheck.remedies import slowdown as cost
from memcheck.remedies.types import Candidate
from memcheck.rules.types import Context


def degrees(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    """Sequence parallelism; a larger tensor degree within the node; context and pipeline parallelism."""
    framework, layout = context.framework, job.layout
    if framework is None:
        return
    able = framework.parallelisms
    if layout.tensor > 1 and not layout.sequence and "sequence" in able:
        title = "split the residual stream over the tensor ranks (sequence parallelism)"
        yield Candidate("sequence", title, {"parallelism.sequence": True}, 0.0)
    if "tensor" in able:
        yield from _tensor(context, job)
    if "context" in able:
        for factor in (2, 4, 8):
            slower = cost.CONTEXT_PER_DOUBLING * (factor.bit_length() - 1)
            degree = layout.context * factor
            title = f"split each sequence over {degree} GPUs (context parallelism)"
            yield from _instead_of_data(context, job, "context", degree, factor, title, slower)
    if "pipeline" in able and isinstance(job.gradient_accumulation_steps, int):
        for factor in (2, 4, 8):
            stages = layout.pipeline * factor
            micro_batches = job.gradient_accumulation_steps * factor
            slower = cost.bubble(stages, micro_batches) - cost.bubble(layout.pipeline, job.gradient_accumulation_steps)
            title = f"split the layers over {stages} pipeline stages"
            yield from _instead_of_data(context, job, "pipeline", stages, factor, title, max(0.0, slower))


def _tensor(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    layout, gpu = job.layout, context.resolved.gpu
    slower = cost.TENSOR_WITHOUT_NVLINK if gpu.nvlink_gbs == 0 else cost.TENSOR_PER_DOUBLING
    factor = 2
    while layout.tensor * factor <= layout.gpus_per_node:
        degree = layout.tensor * factor
        title = f"split every layer over {degree} GPUs of a node (tensor parallelism)"
        yield from _instead_of_data(context, job, "tensor", degree, factor, title, slower * (factor.bit_length() - 1))
        factor *= 2


def _instead_of_data(
    context: Context, job: TrainingJob, name: str, degree: int, factor: int, title: str, slower: float
) -> Iterator[Candidate]:
    """Take ranks from data parallelism and accumulate over as many more micro-batches."""
    if job.layout.data % factor:
        return
    yield Candidate(name, title, {f"parallelism.{name}": degree}, slower, accumulate=factor, data=1 / factor)
