"""The plan takes more GPUs than the policy allows.

## What it does

Compares `nodes * gpus_per_node` with `max-gpus` of the configuration's `[policy]`.

## Why it matters

A typing error in `nodes` is a reservation.

## Example

    hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 64}     # memcheck.toml: [policy] max-gpus = 64

## How to fix

Take fewer GPUs, or have the policy changed.

## Options

`[policy] max-gpus`.

## Source

The repository's configuration: [a policy that holds](../ci.md#a-policy-that-holds).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext, stated
from memcheck.rules.when import governed


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for more GPUs than allowed."""
    governance, layout = context.governance, context.layout
    if governance is None or governance.max_gpus is None or layout.world_size <= governance.max_gpus:
        return
    yield RULE.finding(
        context,
        f"{layout.world_size:,} GPUs ({layout.nodes:,} x {layout.gpus_per_node:,}); the policy allows "
        f"{governance.max_gpus:,}",
        stated(context.document, "/hardware/nodes", "/hardware/gpus_per_node"),
        help="take fewer nodes, or fewer GPUs of each",
    )


RULE = Rule(
    code="MEM604",
    name="too-many-gpus",
    severity="error",
    summary="The plan takes more GPUs than the policy allows.",
    doc=__doc__,
    check=check,
    when=governed,
)
