"""A ZeRO stage is set, but there is nothing to shard over.

## What it does

Warns when `zero_stage` is 1, 2 or 3 and `data * context` (or `shard_group`) is 1.

## Why it matters

ZeRO and FSDP divide the training state over data-parallel ranks. With one of them everything stays whole, and stage 3
even adds its gather buffers.

## Example

    hardware: {gpu: h100-80gb, gpus_per_node: 8}
    parallelism: {tensor: 8, zero_stage: 3}

## How to fix

Remove `zero_stage`, or lower `tensor` or `pipeline` so that data-parallel ranks remain.

## Options

None.

## Source

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 5.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import idle_stage


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when the sharding group is a single rank."""
    layout = context.layout
    if layout.zero_stage == 0 or (layout.data * layout.context > 1 and layout.shard_group > 1):
        return
    group = f"shard_group {layout.shard_group}" if layout.data * layout.context > 1 else "data * context = 1"
    yield RULE.finding(
        context,
        f"zero_stage {layout.zero_stage} shards nothing: {group}",
        "/parallelism/zero_stage",
        help="remove `zero_stage`, or leave GPUs for data parallelism",
        related=(("tensor", "/parallelism/tensor"), ("pipeline", "/parallelism/pipeline")),
    )


RULE = Rule(
    code="MEM208",
    name="zero-without-data-parallel",
    severity="warning",
    summary="A ZeRO stage is set, but there is nothing to shard over.",
    doc=__doc__,
    check=check,
    when=idle_stage,
)
