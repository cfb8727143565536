"""The framework does not have this ZeRO stage.

## What it does

Compares `zero_stage` with the framework's own: ZeRO 0 to 3 for `deepspeed`; the distributed optimizer (1) and
Megatron-FSDP (2, 3) for `megatron`; ZeroRedundancyOptimizer (1) and FSDP2 (3) for the rest.

## Why it matters

What would run has another memory use than what the plan says.

## Example

    parallelism: {zero_stage: 2}
    training: {framework: torchtitan}

## How to fix

The Trainer reaches ZeRO-2 through DeepSpeed: then the plan says `framework: deepspeed`. FSDP's nearest relative
(`SHARD_GRAD_OP`) is `zero_stage: 3` with `reshard_after_forward: false`: parameters are gathered
once per step and stay until after the backward pass.

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
from memcheck.rules.when import unknown_stage


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for a stage that the framework does not have."""
    framework, stage = context.framework, context.layout.zero_stage
    if framework is None or stage in framework.parallelism.zero_stages:
        return
    whole = "FSDP's SHARD_GRAD_OP is `zero_stage: 3` with `reshard_after_forward: false`"
    able = (f for f in FRAMEWORKS.values() if stage in f.parallelism.zero_stages and f.has_sharding_engine)
    engine = next(f.name for f in able if f.runs_transformers)
    reaches = f"{framework.name} reaches it through" if framework.runs_transformers else "what has it is"
    help = f"{whole}, or `framework: {engine}`"
    if stage == 2:
        help = f"{reaches} DeepSpeed, `framework: {engine}`; {whole}"
    yield RULE.finding(
        context,
        f"{framework.title} has no ZeRO stage {stage} of its own; it has {listed(framework.parallelism.zero_stages)}",
        "/parallelism/zero_stage",
        help=help,
        related=(("the framework", "/training/framework"),),
    )


RULE = Rule(
    code="MEM215",
    name="unsupported-zero-stage",
    severity="error",
    summary="The framework does not have this ZeRO stage.",
    doc=__doc__,
    check=check,
    when=unknown_stage,
    blocking=True,
)
