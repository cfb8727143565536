"""The sharding group does not divide the data-parallel ranks.

## What it does

Checks that `shard_group` divides `data * context`, and that it is not set without a ZeRO stage.

## Why it matters

Hybrid sharding (HSDP) keeps one copy of the state per group of `shard_group` ranks; the groups must be equal.

## Example

    hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 2}
    parallelism: {zero_stage: 3, shard_group: 12}      # 16 ranks

## How to fix

Use a divisor of `data * context`, usually `gpus_per_node`, or leave it out for full sharding.

## Options

None.

## Source

torch `fully_shard` with a two-dimensional mesh; torchtitan `data_parallel_shard_degree`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import divisors, listed
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import states_group


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for a group that cannot be formed or that shards nothing."""
    layout, group = context.layout, context.plan.parallelism.shard_group
    if group is None or context.training is None:
        return
    ranks = layout.data * layout.context
    if layout.zero_stage == 0:
        message = f"shard_group {group} without a ZeRO stage shards nothing"
        help, severity = "set `zero_stage: 3`, or remove `shard_group`", "warning"
    elif ranks % group:
        message = f"shard_group {group} does not divide data {layout.data} * context {layout.context} = {ranks} ranks"
        help, severity = f"use one of {listed(divisors(ranks, ranks), 'or')}", "error"
    else:
        return
    yield RULE.finding(
        context,
        message,
        "/parallelism/shard_group",
        help=help,
        related=(("ZeRO stage", "/parallelism/zero_stage"), ("data", "/parallelism/data")),
        severity=severity,
    )


RULE = Rule(
    code="MEM214",
    name="shard-group",
    severity="error",
    summary="The sharding group does not divide the data-parallel ranks.",
    doc=__doc__,
    check=check,
    when=states_group,
    blocking=True,
)
