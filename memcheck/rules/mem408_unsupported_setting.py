"""The framework does not have this method, loss, attention, recompute mode or key.

## What it does

Compares `method`, `loss`, `attention` and `activation_checkpointing` with what the framework offers, and reports keys
that it has nothing for, if they state something else than what it does anyway: `reshard_after_forward` or
`gradient_sync` under deepspeed and megatron, `precision.reduce` under torchtitan.

## Why it matters

What would run has another memory use than what the plan says: a missing fused loss alone is tens of gigabytes of
logits. And no line of the framework does what a key asks for that it does not have.

## Example

    training: {framework: megatron, loss: fused-linear}

## How to fix

Take one of the settings that the finding lists, or another framework. A key without counterpart can only go; the
finding says what the framework does instead.

## Options

None.

## Source

The frameworks' own records; `memcheck list frameworks` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.finding import Finding
from memcheck.rules.deviations import deviates
from memcheck.rules.types import Context, Rule
from memcheck.rules.words import listed


def check(context: Context) -> Iterator[Finding]:
    """One finding per setting that the framework does not offer, and per key that it has nothing for."""
    framework, job, stated = context.framework, context.training, context.plan.training
    if framework is None or job is None or stated is None:
        return
    for key, instead in framework.lacks.items():
        if deviates(context.plan, job, framework, key):
            yield RULE.finding(
                context,
                f"{framework.title} has no `{key.rpartition('.')[2]}`: {instead}",
                "/" + key.replace(".", "/"),
                help=f"remove `{key}`",
                related=(("the framework", "/training/framework"),),
            )
    offered = (
        ("method", job.method, framework.methods),
        ("loss", (stated.loss.kind if stated.loss else None) or job.loss.kind, framework.losses),
        ("attention", job.attention, framework.attentions),
        ("activation_checkpointing", job.checkpointing.mode, framework.recompute),
    )
    for key, value, known in offered:
        if value in known or (key == "loss" and job.loss.kind in known):
            continue
        yield RULE.finding(
            context,
            f"{framework.title} has no {key.replace('_', ' ')} `{value}`",
            f"/training/{key}",
            help=f"it has: {listed(known)}",
            related=(("the framework", "/training/framework"),),
        )


RULE = Rule(
    "MEM408",
    "unsupported-setting",
    "error",
    "The framework does not have this method, loss, attention, recompute mode or key.",
    __doc__,
    check,
)
