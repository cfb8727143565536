"""The plan leaves most of the GPU unused.

## What it does

Compares the predicted utilisation (`needed / capacity`) with `policy.waste_below`. Silent unless a plan sets it.

## Why it matters

GPUs are paid for by the hour, whether their memory is used or not. A larger micro-batch, less recompute or fewer GPUs
would finish the same work sooner or cheaper.

## Example

    policy: {waste_below: 40%}     # and a plan that is predicted to use 22 %

## How to fix

Raise `training.micro_batch_size`, drop `activation_checkpointing`, lower the ZeRO stage or tensor degree, or use fewer
or smaller GPUs.

## Options

`policy.waste_below`; off by default.

## Source

A policy of the team, not a fact.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import gib, need, percent
from memcheck.rules.types import MEASURED, Rule, RuleContext
from memcheck.rules.when import wasteful


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding below ``policy.waste_below``."""
    estimate = context.estimate
    if estimate is None or context.waste_below is None or estimate.utilization >= context.waste_below:
        return
    unused = gib(estimate.capacity_bytes - estimate.needed_bytes)
    yield RULE.finding(
        context,
        f"{need(context, estimate)}, below {percent(context.waste_below)}: {unused} of every GPU stay unused",
        "/policy/waste_below",
        help="raise `training.micro_batch_size`, recompute less, or use fewer or smaller GPUs",
        related=(("the GPU", "/hardware/gpu"), ("the batch", "/training/micro_batch_size")),
    )


RULE = Rule(
    code="MEM105",
    name="wasted-memory",
    severity="warning",
    summary="The plan uses less of the GPU than `waste_below`.",
    doc=__doc__,
    check=check,
    when=wasteful,
    precision=MEASURED,
    needs_estimate=True,
    opt_in=True,
)
