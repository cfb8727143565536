"""Adapter settings are given, but the method is full fine-tuning.

## What it does

Reports `training.lora` when `method` is `full` or not set.

## Why it matters

The prediction is then for training every parameter, an order of magnitude more than the adapters that were meant.

## Example

    training: {lora: {rank: 16}}

## How to fix

Add `method: lora` or `method: qlora`, or remove `lora`.

## Options

None.

## Source

The plan format.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import idle_adapters


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for settings that nothing uses."""
    stated, job = context.plan.training, context.training
    if stated is None or job is None or stated.lora is None or job.method != "full":
        return
    yield RULE.finding(
        context,
        "`lora` is set, but the method is full fine-tuning: every parameter is trained",
        "/training/lora",
        help="add `method: lora` (or `qlora`), or remove `lora`",
        related=(("the method", "/training/method"),),
    )


RULE = Rule(
    code="MEM405",
    name="lora-without-method",
    severity="error",
    summary="Adapter settings without an adapter method.",
    doc=__doc__,
    check=check,
    when=idle_adapters,
)
