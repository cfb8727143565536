"""Changes of one degree of parallelism that keep the GPUs and the global batch."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import TrainingJob
from memcheck.remedies.types import EQUIVALENT, Candidate
from memcheck.rules.types import Context


def degrees(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    """Sequence parallelism; a larger tensor degree within the node; context, pipeline and expert parallelism."""
    framework, layout = context.framework, job.layout
    if framework is None:
        return
    able = framework.parallelisms
    if layout.tensor > 1 and not layout.sequence and "sequence" in able:
        title = "split the residual stream over the tensor ranks (sequence parallelism)"
        yield Candidate("sequence", title, {"parallelism.sequence": True}, numerics=EQUIVALENT)
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
    if "expert" in able:
        for factor in (2, 4, 8, 16, 32, 64):
            degree = layout.expert * factor
            title = f"deal the experts out to {degree} ranks (expert parallelism)"
            yield Candidate("expert", title, {"parallelism.expert": degree}, numerics=EQUIVALENT)


def _instead_of_data(job: TrainingJob, name: str, degree: int, factor: int, title: str) -> Iterator[Candidate]:
    """Take ranks from data parallelism and accumulate over as many more micro-batches."""
    if job.layout.data % factor == 0:
        yield Candidate(name, title, {f"parallelism.{name}": degree}, numerics=EQUIVALENT)
