"""How many GPU hours a run takes whose steps the plan states."""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.rules.types import RuleContext
from memcheck.timing.step import step_time


def gpu_hours(context: RuleContext) -> float | None:
    """Steps x seconds of a step x GPUs; None without ``training.steps``, or where a step has no modelled time."""
    job, training = context.training, context.plan.training
    if job is None or training is None or training.steps is None:
        return None
    try:
        seconds = step_time(job, context.resolved.gpu).seconds
    except UnsupportedError:
        return None
    return training.steps * seconds * context.layout.world_size / 3600
