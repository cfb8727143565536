"""Compares the value that a plan states with the value that its framework takes without the key.

Which default decides a verdict: what the plan needs with another value of a key that it leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.estimate import Estimate
from memcheck.errors import MemcheckError
from memcheck.frameworks.torch.data_parallel import mixes_adapters
from memcheck.job.framework import Framework
from memcheck.job.lookup import Defaults
from memcheck.job.recipe import resolve_recipe
from memcheck.job.types import Assumption, Recipe, TrainingJob
from memcheck.job.versions import FSDP, KBIT, WRAPS
from memcheck.memory.estimate import estimate as priced
from memcheck.memory.fit import hangs
from memcheck.plan.read import fields
from memcheck.plan.types import Plan
from memcheck.record import Record
from memcheck.rules.budget import gib, percent
from memcheck.rules.types import RuleContext

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
    """Return the value under a dotted key of the plan; None where it is not stated."""
    value: object = plan
    for part in fields(key):
        value = getattr(value, part, None)
        if value is None:
            return None
    return value


def deviates(plan: Plan, job: TrainingJob, framework: Framework, key: str) -> bool:
    """Say whether the plan states a value under ``key`` other than the one that it would have anyway."""
    value = stated(plan, key)
    if value is None:
        return False
    if key == "parallelism.gradient_sync":
        return value != framework.parallelism.gradient_sync_default
    if key in PLAIN:
        return bool(value != PLAIN[key])
    if key == "training.lora.dtype":
        return job.lora is not None and value != job.lora.dtype
    if key == "training.optimizer.implementation":
        return value != framework.optimizers.by_name.get(job.optimizer.name, framework.optimizers.implementation)
    return bool(value != getattr(_usual_recipe(plan, job, framework, key), key.rpartition(".")[2]))


def _usual_recipe(plan: Plan, job: TrainingJob, framework: Framework, key: str) -> Recipe:
    """Return the recipe without the plan's own word on one dtype."""
    named = plan.training.precision if plan.training else None
    if named is not None:
        named = named._replace(**{key.rpartition(".")[2]: None})
    return resolve_recipe(named, job.method, job.layout, framework, Defaults())


ROWS = "training.sequences"
STATE_ROWS = f"state `{ROWS}`: `packed` if every row is full, `padded` if a collator pads them"
LEAST = 0.02
"""A share of the capacity: what a default decides below this is not worth a word."""


class Other(Record):
    """A key that the plan leaves out, the value that it has, another one, and the job with that."""

    key: str
    value: object
    other: object
    job: TrainingJob


def hanging(context: RuleContext, estimate: Estimate) -> str:
    """Return ``; a default decides 12.43 GiB of it: with `parallelism.gradient_sync: every` instead of `last` the plan
    needs 24.84 GiB and passes``, for every such key; empty where no default decides as much.
    """
    found = []
    for each in _others(context):
        try:
            answer = priced(each.job, context.resolved.gpu, context.resolved.overhead)
        except MemcheckError:
            continue
        less = estimate.needed_bytes - answer.needed_bytes
        if less < LEAST * estimate.capacity_bytes:
            continue
        fits = answer.needed_bytes <= context.fail_above * estimate.capacity_bytes
        found.append(
            f"; a default decides {gib(less)} of it: with `{each.key}: {_shown(each.other)}` instead of "
            f"`{_shown(each.value)}` the plan needs {gib(answer.needed_bytes)} ({percent(answer.utilization)})"
            + (" and passes" if fits else "")
        )
    return "".join(found)


def unstated(context: RuleContext, estimate: Estimate) -> str:
    """Return ``; a default decides: with `training.sequences: padded` instead of `packed` the plan needs 81.20 GiB
    (102.6%), above the limit of 95.0%``, for a plan that passes by a default alone; empty for others.
    """
    if not hangs(estimate, context.fail_above):
        return ""
    other = percent(estimate.padded_bytes / estimate.capacity_bytes)
    return (
        f"; a default decides: with `{ROWS}: padded` instead of `packed` the plan needs "
        f"{gib(estimate.padded_bytes)} ({other}), above the limit of {percent(context.fail_above)}"
    )


def with_effects(assumptions: tuple[Assumption, ...], estimate: Estimate) -> tuple[Assumption, ...]:
    """Return the assumptions, with what the plan needs on top if one of them does not hold."""
    more = gib(estimate.padded_bytes - estimate.needed_bytes)
    return tuple(
        each._replace(why=f"{each.why}, which needs {more} more") if each.key == ROWS else each for each in assumptions
    )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _others(context: RuleContext) -> Iterator[Other]:
    """Yield each assumption with the value that would need more memory, and the job with that."""
    job = context.training
    if job is None:
        return
    layout, key = job.layout, "parallelism.gradient_sync"
    if layout.gradient_sync == "last" and job.gradient_accumulation_steps > 1 and stated(context.plan, key) is None:
        synchronised = job._replace(layout=layout._replace(gradient_sync="every"))
        yield Other(key=key, value="last", other="every", job=synchronised)
    training = context.plan.training
    options = (training.options if training is not None else None) or {}
    if job.prepares_kbit and KBIT not in options:
        yield Other(key=f"training.options.{KBIT}", value=True, other=False, job=job._replace(prepares_kbit=False))
    known = job.framework.options
    if job.fsdp_version == 1 and FSDP in known and FSDP not in options:
        yield Other(key=f"training.options.{FSDP}", value=1, other=2, job=job._replace(fsdp_version=2))
    if mixes_adapters(job) and WRAPS in known and WRAPS not in options:
        apart = job._replace(options=tuple(sorted([*job.options, (WRAPS, True)])))
        yield Other(key=f"training.options.{WRAPS}", value=False, other=True, job=apart)
    if job.sequences == "padded" and training is not None and training.sequences is None:
        yield Other(key=ROWS, value="padded", other="packed", job=job._replace(sequences="packed"))
