"""The node has more of these GPUs than such nodes are built with.

## What it does

Compares `hardware.gpus_per_node` with the largest usual node of that GPU, as the catalog knows it.

## Why it matters

It is nearly always the total number of GPUs, written where the number per node belongs; then node boundaries, and with
them MEM207 and host memory, are wrong.

## Example

    hardware: {gpu: h100-80gb, gpus_per_node: 64}      # 8 nodes of 8

## How to fix

Split the number into `nodes` and `gpus_per_node`.

## Options

None.

## Source

The catalog's `gpus_per_node`, from the vendors' reference platforms. Up to twice that number is not questioned.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules import REVIEW
from memcheck.rules.types import HEURISTIC, Rule, RuleContext


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for an implausibly large node."""
    usual, stated = context.resolved.gpu.gpus_per_node, context.layout.gpus_per_node
    if not usual or stated <= max(8, 2 * usual):
        return
    total = stated * context.layout.nodes
    split = f"`gpus_per_node: {usual}` and `nodes: {total // usual}`" if total % usual == 0 else "`nodes`"
    yield RULE.finding(
        context,
        f"{stated} GPUs per node, while nodes of {context.resolved.gpu.name} have {usual}",
        "/hardware/gpus_per_node",
        help=f"if {total} is the total, write {split}",
        related=(("nodes", "/hardware/nodes"),),
    )


RULE = Rule(
    code="MEM213",
    name="gpus-per-node",
    severity="warning",
    summary="The node has more of these GPUs than such nodes are built with.",
    doc=__doc__,
    check=check,
    precision=HEURISTIC,
    profile=REVIEW,
)
