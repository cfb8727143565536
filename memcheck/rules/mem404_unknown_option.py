"""The framework has no such option that moves memory.

## What it does

Compares the names under `training.options` with the knobs that memcheck knows of that framework.

## Why it matters

An option that is not read changes nothing in the prediction; a typo would pass silently.

## Example

    training: {framework: deepspeed, options: {reduce_buckets_size: 50000000}}

## How to fix

Correct the name, or move the option out of the plan if it does not bear on memory.

## Options

None.

## Source

The frameworks' own arguments, under their upstream names.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.finding import Finding
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.words import close_to, listed


def check(context: RuleContext) -> Iterator[Finding]:
    """One finding per unknown option."""
    framework, stated = context.framework, context.plan.training
    if framework is None or stated is None:
        return
    for name in stated.options or {}:
        if name in framework.options:
            continue
        others = [f.name for f in FRAMEWORKS.values() if name in f.options]
        help = close_to(name, framework.options)
        if others:
            help = f"it is an option of {listed(others)}"
        yield RULE.finding(
            context,
            f"{framework.name} has no option `{name}` that memcheck knows",
            f"/training/options/{name}",
            help=help or f"known: {listed(sorted(framework.options)[:8])}, ...",
            related=(("the framework", "/training/framework"),),
        )


RULE = Rule(
    code="MEM404",
    name="unknown-option",
    severity="error",
    summary="The framework has no such option.",
    doc=__doc__,
    check=check,
)
