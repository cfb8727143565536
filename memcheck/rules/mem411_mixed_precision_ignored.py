"""Mixed precision is asked for, but this layout runs in fp32.

## What it does

Warns about a mixed recipe under torchtitan with tensor or pipeline parallelism below `zero_stage: 3`.

## Why it matters

torchtitan applies mixed precision through FSDP, or through autocast when nothing but data parallelism is on. With
tensor or pipeline parallelism alone everything is computed in fp32: activations take twice the memory, and the step
is slow.

## Example

    parallelism: {tensor: 8, zero_stage: 0}
    training: {framework: torchtitan, precision: bf16-mixed}

## How to fix

Set `zero_stage: 3`, or use `precision: bf16-pure`.

## Options

None.

## Source

torchtitan `TrainingConfig.mixed_precision_param` ("takes effect via torch.autocast when ... no other parallelism is
enabled").
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import recipe_ignored


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when the recipe's name and what it computes in disagree."""
    job = context.training
    if job is None or not job.recipe.recipe.endswith("-mixed") or job.recipe.compute != "fp32":
        return
    yield RULE.finding(
        context,
        f"{job.recipe.recipe} runs in fp32: {job.framework.name} applies mixed precision with tensor "
        f"{job.layout.tensor} and pipeline {job.layout.pipeline} only at zero_stage 3",
        "/training/precision",
        help="set `zero_stage: 3`, or use `precision: bf16-pure`",
        related=(("the stage", "/parallelism/zero_stage"), ("tensor", "/parallelism/tensor")),
    )


RULE = Rule(
    code="MEM411",
    name="mixed-precision-ignored",
    severity="warning",
    summary="Mixed precision is asked for, but this layout runs in fp32.",
    doc=__doc__,
    check=check,
    when=recipe_ignored,
)
