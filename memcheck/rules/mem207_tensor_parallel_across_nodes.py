"""A tensor-parallel group spans several nodes.

## What it does

Warns when `tensor` is larger than `gpus_per_node` or does not divide it. GPUs whose NVLink domain spans nodes (GB200
and GB300 NVL72) are left alone.

## Why it matters

Tensor parallelism exchanges activations four times per layer. Over the network instead of NVLink the step becomes
several times slower; memory is not the problem.

## Example

    hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 2}
    parallelism: {tensor: 16}

## How to fix

Keep `tensor` within a node and use `pipeline`, `zero_stage` or `context` across nodes.

## Options

None.

## Source

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules import REVIEW
from memcheck.rules.budget import divisors
from memcheck.rules.types import HEURISTIC, Rule, RuleContext

RACK_SCALE = ("gb200", "gb300")


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when a tensor group cannot lie within a node."""
    layout = context.layout
    if layout.tensor == 1 or layout.nodes == 1 or context.resolved.gpu.name.startswith(RACK_SCALE):
        return
    if layout.gpus_per_node % layout.tensor == 0:
        return
    within = divisors(layout.gpus_per_node, layout.tensor)[-1]
    yield RULE.finding(
        context,
        f"tensor {layout.tensor} does not fit into nodes of {layout.gpus_per_node} GPUs: it exchanges over the network",
        "/parallelism/tensor",
        help=f"use `tensor: {within}` and spread the rest over `pipeline`, `context` or data-parallel shards",
        related=(("GPUs per node", "/hardware/gpus_per_node"),),
    )


RULE = Rule(
    code="MEM207",
    name="tensor-parallel-across-nodes",
    severity="warning",
    summary="A tensor-parallel group spans several nodes.",
    doc=__doc__,
    check=check,
    precision=HEURISTIC,
    profile=REVIEW,
)
