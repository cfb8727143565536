"""Compares the value that a plan states with the value that its framework takes without the key."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.job.framework import Framework
from memcheck.job.recipe import resolve_recipe
from memcheck.job.types import Recipe, TrainingJob
from memcheck.plan.changes import fields
from memcheck.plan.types import Plan

NEUTRAL: dict[str, object] = {
    "parallelism.reshard_after_forward": True,
    "parallelism.gradient_sync": "every",
    "parallelism.gradient_as_bucket_view": False,
    "parallelism.pipeline_schedule": "1f1b",
}
"""Values with which a key of a layout says nothing."""
PLAIN: dict[str, object] = {
    **NEUTRAL,
    "training.activation_checkpointing.offload": "none",
    "training.loss.upcast": True,
    "training.loss.keep_logits": False,
}
"""Values with which a key that a framework may lack says nothing, for every such key that has one."""


def stated(plan: Plan, key: str) -> object:
    """The value under a dotted key of the plan; None where it is not stated."""
    value: object = plan
    for part in fields(key):
        value = getattr(value, part, None)
        if value is None:
            return None
    return value


def deviates(plan: Plan, job: TrainingJob, framework: Framework, key: str) -> bool:
    """Whether the plan states a value under ``key`` other than the one that it would have anyway."""
    value = stated(plan, key)
    if value is None:
        return False
    if key == "parallelism.gradient_sync":
        return value != framework.parallelism.gradient_sync
    if key in PLAIN:
        return bool(value != PLAIN[key])
    if key == "training.lora.dtype":
        return job.lora is not None and value != job.lora.dtype
    if key == "training.optimizer.implementation":
        return value != framework.optimizers.by_name.get(job.optimizer.name, framework.optimizers.implementation)
    return bool(value != getattr(_usual_recipe(plan, job, framework, key), key.rpartition(".")[2]))


def _usual_recipe(plan: Plan, job: TrainingJob, framework: Framework, key: str) -> Recipe:
    """The recipe without the plan's own word on one dtype."""
    named = plan.training.precision if plan.training else None
    if named is not None:
        named = named._replace(**{key.rpartition(".")[2]: None})
    return resolve_recipe(named, job.method, job.layout, framework, Defaults())
