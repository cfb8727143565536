"""The plan uses model parallelism, but does not say whose code runs it.

## What it does

Reports tensor, pipeline, expert or context parallelism without `training.framework`. The default, `huggingface`, has
no pipeline and no expert parallelism at all, and its tensor parallelism keeps activations that others split.

## Why it matters

The same degrees cost different memory in each framework: Megatron keeps fp32 main gradients and splits the residual
stream over the tensor ranks, DTensor does neither. A guess would be wrong by gigabytes.

## Example

    parallelism: {tensor: 8, pipeline: 4}
    training: {sequence_length: 4096}

## How to fix

Write `framework: megatron`, `torchtitan`, `deepspeed`, `pytorch` or `huggingface`.

## Options

None.

## Source

The frameworks' own records; `memcheck list frameworks` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.plan.finding import Finding
from memcheck.rules.budget import listed
from memcheck.rules.mem212_unsupported_parallelism import DEGREES, unsupported
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import no_framework

HARMLESS = frozenset({"context"})
"""Priced alike in every framework that has it, so that the default may stand with a warning."""


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding naming every degree that asks for the answer."""
    stated = context.plan.training
    if stated is None or stated.framework is not None:
        return
    used = [name for name in DEGREES if getattr(context.layout, name) > 1]
    if not used:
        return
    missing = unsupported(context)
    able = [f.name for f in FRAMEWORKS.values() if all(name in f.parallelism.degrees for name in used)]
    degrees = listed(f"{name} {getattr(context.layout, name)}" for name in used)
    default = context.framework.name if context.framework else ""
    lack = f" {default}, the default, has no {listed(missing)} parallelism" if missing else f" {default} was assumed"
    yield RULE.finding(
        context,
        f"{degrees} without `training.framework`:{lack}",
        f"/parallelism/{(missing or used)[0]}",
        help=f"say whose code runs it: `framework: {listed(able, 'or')}`",
        severity="warning" if set(used) <= HARMLESS else "error",
    )


RULE = Rule(
    code="MEM403",
    name="framework-unset",
    severity="error",
    summary="The plan uses model parallelism, but does not say whose code runs it.",
    doc=__doc__,
    check=check,
    when=no_framework,
    blocking=True,
)
