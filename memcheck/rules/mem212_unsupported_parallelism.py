"""The framework does not have the parallelism that the plan asks for.

## What it does

Compares `tensor`, `sequence`, `context`, `pipeline`, `expert` and `expert_tensor` with what the framework can do.

## Why it matters

The plan cannot run, and a prediction for it would be of a program that does not exist.

## Example

    parallelism: {pipeline: 4}
    training: {framework: huggingface}      # transformers.Trainer has no pipeline

## How to fix

Name the framework that will run the plan (`megatron` and `torchtitan` have all of them), or use sharding
(`zero_stage: 3`) instead.

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
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import parallel

DEGREES = ("tensor", "context", "pipeline", "expert", "expert_tensor")


def unsupported(context: RuleContext) -> tuple[str, ...]:
    """Return the keys of ``parallelism`` that are in use and that the framework does not have."""
    framework, layout = context.framework, context.layout
    if framework is None:
        return ()
    used = [name for name in DEGREES if getattr(layout, name) > 1]
    if layout.sequence and layout.tensor > 1:
        used.append("sequence")
    return tuple(name for name in used if name not in framework.parallelism.degrees)


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per key, unless the framework was not named (MEM403 says so then)."""
    framework = context.framework
    if framework is None or context.plan.training is None or context.plan.training.framework is None:
        return
    for name in unsupported(context):
        able = [f.name for f in FRAMEWORKS.values() if name in f.parallelism.degrees]
        yield RULE.finding(
            context,
            f"{framework.title} has no {name.replace('_', '-')} parallelism",
            f"/parallelism/{name}",
            help=f"frameworks that have it: {listed(able)}",
            related=(("the framework", "/training/framework"),),
        )


RULE = Rule(
    code="MEM212",
    name="unsupported-parallelism",
    severity="error",
    summary="The framework does not have the parallelism that the plan asks for.",
    doc=__doc__,
    check=check,
    when=parallel,
    blocking=True,
)
