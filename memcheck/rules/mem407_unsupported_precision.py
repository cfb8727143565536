"""The framework does not have this precision recipe.

## What it does

Compares `precision` with the recipes of the framework.

## Why it matters

A recipe decides the bytes per parameter (from 8 to 18 in live use). Where the framework has no such recipe, the
prediction is for what PyTorch itself would do, which is not what will run.

## Example

    training: {framework: megatron, precision: bf16-pure}     # Megatron keeps an fp32 master copy

## How to fix

Take one of the framework's recipes. Single dtypes can be changed in addition to it
(`precision: {recipe: bf16-mixed, gradients: bf16}`).

## Options

None.

## Source

The frameworks' own records; `memcheck list frameworks` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import listed
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import unknown_recipe


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for a recipe that the framework does not offer."""
    framework, job = context.framework, context.training
    if framework is None or job is None or job.recipe.recipe in framework.precisions.recipes:
        return
    yield RULE.finding(
        context,
        f"{framework.title} has no recipe {job.recipe.recipe}",
        "/training/precision",
        help=f"its recipes: {listed(framework.precisions.recipes)}",
        related=(("the framework", "/training/framework"),),
    )


RULE = Rule(
    code="MEM407",
    name="unsupported-precision",
    severity="error",
    summary="The framework does not have this precision recipe.",
    doc=__doc__,
    check=check,
    when=unknown_recipe,
)
