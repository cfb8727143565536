"""The run takes more GPU hours than the policy allows, or does not say how long it is.

## What it does

Multiplies `training.steps` by the modelled time of a step and the number of GPUs, and compares that with
`max-gpu-hours` of the configuration's `[policy]`. A training plan without `steps`, and one whose step has no modelled
time, is reported, too: nothing can be said of its hours.

## Why it matters

The cost of a run is decided in the plan, and seen on the bill.

## Example

    training: {micro_batch_size: 1, steps: 2000000}     # memcheck.toml: [policy] max-gpu-hours = 5000

## How to fix

State the optimizer steps of the run; take fewer, or a layout that runs faster (`memcheck suggest --goal throughput`).

## Options

`[policy] max-gpu-hours`.

## Source

The [throughput model](../throughput.md), which ranks plans and is no measurement. The
repository's configuration: [a policy that holds](../ci.md#a-policy-that-holds).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.errors import UnsupportedError
from memcheck.plan.finding import Finding
from memcheck.rules.types import MEASURED, Rule, RuleContext, stated
from memcheck.rules.when import governed
from memcheck.timing.step import step_time


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for too many hours, or for hours that cannot be known."""
    governance, job, training = context.governance, context.training, context.plan.training
    if governance is None or governance.max_gpu_hours is None or job is None or training is None:
        return
    most = f"the policy allows {governance.max_gpu_hours:,.0f} GPU hours"
    if training.steps is None:
        help = "state the optimizer steps of the run: `steps: 1000`"
        yield RULE.finding(context, f"{most}, and the plan states no `steps`", "/training", help=help)
        return
    pointer = stated(context.document, "/training/steps", "/training")
    try:
        seconds = step_time(job, context.resolved.gpu).seconds
    except UnsupportedError as error:
        yield RULE.finding(context, f"{most}, and a step has no time: {error.message}", pointer, help=error.help)
        return
    hours = _hours(context, training.steps, seconds)
    if hours > governance.max_gpu_hours:
        yield RULE.finding(
            context,
            f"{training.steps:,} steps of {seconds:,.2f} s on {context.layout.world_size:,} GPUs are about "
            f"{hours:,.0f} GPU hours; {most}",
            pointer,
            help="take fewer steps, or search for a faster layout: `memcheck suggest --goal throughput`",
        )


def gpu_hours(context: RuleContext) -> float | None:
    """Steps x seconds of a step x GPUs; None without ``training.steps``, or where a step has no modelled time."""
    job, training = context.training, context.plan.training
    if job is None or training is None or training.steps is None:
        return None
    try:
        return _hours(context, training.steps, step_time(job, context.resolved.gpu).seconds)
    except UnsupportedError:
        return None


def _hours(context: RuleContext, steps: int, seconds: float) -> float:
    return steps * seconds * context.layout.world_size / 3600


RULE = Rule(
    code="MEM605",
    name="too-many-gpu-hours",
    severity="error",
    summary="The run takes more GPU hours than the policy allows, or does not say how long it is.",
    doc=__doc__,
    check=check,
    when=governed,
    precision=MEASURED,
    needs_estimate=True,
)
