"""What each micro-batch of a step gathers and reduces, by the plan's keys where the framework reads them."""

from __future__ import annotations

from memcheck.job.types import TrainingJob


def reduces_every(job: TrainingJob) -> bool:
    """Whether gradients are reduced with every micro-batch instead of with the last one.

    Megatron reduces with the last one unless gradients are sharded (megatron_fsdp.py, grad_reduce_every_bprop), and so
    does DeepSpeed (zero/stage_1_and_2.py, process_gradients; engine.py, allreduce_gradients).
    """
    framework = job.framework
    if framework.own_engine:
        return job.layout.zero_stage >= 2
    lacking = "parallelism.gradient_sync" in framework.lacks
    return (framework.parallelism.gradient_sync if lacking else job.layout.gradient_sync) == "every"


def gathers_again(job: TrainingJob) -> bool:
    """Whether sharded parameters are gathered again for backward: always where nothing can keep them."""
    lacking = "parallelism.reshard_after_forward" in job.framework.lacks
    return job.layout.reshard_after_forward or lacking
