"""Changes of how a model is made and how it is saved: tried where that is what needs too much."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.framework import Framework
from memcheck.job.training import shards_parameters
from memcheck.job.types import Evaluation, TrainingJob
from memcheck.memory.fit import on_host
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.types import EQUIVALENT, CandidateChange

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
    """Candidates for the moments before and after the steps that exceed the memory of a GPU or of a node."""
    moments, framework = critical(context), context.framework
    if framework is None:
        return
    if moments & {"load", "init"} and job.held_in:
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
    """Smaller batches of the evaluation, which move no result."""
    size = evaluation.micro_batch_size
    while size > 1:
        size //= 2
        title = f"evaluate {size} {'sequence' if size == 1 else 'sequences'} at a time"
        yield CandidateChange("evaluation", title, {"training.evaluation.micro_batch_size": size})


def critical(context: RuleContext) -> set[str]:
    """The instant of the GPU's peak, others that exceed the limit, and those for which a node has too little memory."""
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
