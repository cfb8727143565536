"""Which default decides a verdict: what the plan needs with another value of a key that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.estimate import Estimate
from memcheck.errors import MemcheckError
from memcheck.frameworks.torch.fsdp import mixes_adapters
from memcheck.job.types import Assumption, TrainingJob
from memcheck.job.versions import FSDP, KBIT, WRAPS
from memcheck.memory.estimate import estimate as priced
from memcheck.memory.fit import hangs
from memcheck.record import Record
from memcheck.rules.deviations import stated
from memcheck.rules.types import RuleContext
from memcheck.rules.words import gib, percent

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
    """``; a default decides 12.43 GiB of it: with `parallelism.gradient_sync: every` instead of `last` the plan needs
    24.84 GiB and passes``, for every such key; empty where no default decides as much.
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
    """``; a default decides: with `training.sequences: padded` instead of `packed` the plan needs 81.20 GiB (102.6%),
    above the limit of 95.0%``, for a plan that passes by a default alone; empty for others.
    """
    if not hangs(estimate, context.fail_above):
        return ""
    other = percent(estimate.padded_bytes / estimate.capacity_bytes)
    return (
        f"; a default decides: with `{ROWS}: padded` instead of `packed` the plan needs "
        f"{gib(estimate.padded_bytes)} ({other}), above the limit of {percent(context.fail_above)}"
    )


def with_effects(assumptions: tuple[Assumption, ...], estimate: Estimate) -> tuple[Assumption, ...]:
    """The assumptions, with what the plan needs on top if one of them does not hold."""
    more = gib(estimate.padded_bytes - estimate.needed_bytes)
    return tuple(
        each._replace(why=f"{each.why}, which needs {more} more") if each.key == ROWS else each for each in assumptions
    )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _others(context: RuleContext) -> Iterator[Other]:
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
    if job.fsdp == 1 and FSDP in known and FSDP not in options:
        yield Other(key=f"training.options.{FSDP}", value=1, other=2, job=job._replace(fsdp=2))
    if mixes_adapters(job) and WRAPS in known and WRAPS not in options:
        apart = job._replace(options=tuple(sorted([*job.options, (WRAPS, True)])))
        yield Other(key=f"training.options.{WRAPS}", value=False, other=True, job=apart)
    if job.sequences == "padded" and training is not None and training.sequences is None:
        yield Other(key=ROWS, value="padded", other="packed", job=job._replace(sequences="packed"))
