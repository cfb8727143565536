"""The degrees of parallelism do not multiply to the number of GPUs.

## What it does

Checks `tensor * context * pipeline * data == nodes * gpus_per_node`. With `data: auto` the product of the other three
must divide the number of GPUs.

## Why it matters

Every launcher refuses such a job at start-up, after it has waited in the queue.

## Example

    hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 3}     # 24 GPUs
    parallelism: {tensor: 8, pipeline: 4}                       # 32 do not divide 24

## How to fix

Change a degree or the number of nodes. Leaving `data` out lets memcheck derive it. Expert parallelism takes its ranks
from the data, context and tensor ranks and is no factor of this product (MEM205 checks it).

## Options

None.

## Source

`megatron/training/arguments.py` ("world size is not divisible by total_model_size"), torchtitan
`distributed/parallel_dims.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.plan.finding import Finding
from memcheck.rules.budget import multiples
from memcheck.rules.types import Rule, RuleContext, stated
from memcheck.rules.when import miscounted


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when the product of all degrees is not the number of GPUs."""
    layout = context.layout
    model = layout.tensor * layout.context * layout.pipeline
    world = layout.world_size
    if model * layout.data == world:
        return
    gpus = f"{world} GPUs ({layout.nodes} x {layout.gpus_per_node})"
    degrees = f"tensor {layout.tensor} * context {layout.context} * pipeline {layout.pipeline}"
    if context.plan.parallelism.data is None:
        message = f"{degrees} = {model} does not divide {gpus}"
        pointer = _largest_degree(context)
        help = f"{multiples(world, model)} GPUs would do; or change a degree"
    else:
        message = f"{degrees} * data {layout.data} = {model * layout.data}, but the plan has {gpus}"
        pointer = "/parallelism/data"
        right = f"`data: {world // model}`" if world % model == 0 else "degrees that divide the number of GPUs"
        help = f"write {right}, or leave `data` out"
    yield RULE.finding(
        context,
        message,
        pointer,
        help=help,
        related=(("GPUs per node", "/hardware/gpus_per_node"), ("nodes", "/hardware/nodes")),
    )


def _largest_degree(context: RuleContext) -> str:
    degrees = context.plan.parallelism
    ordered = sorted(("tensor", "context", "pipeline"), key=lambda name: -(getattr(degrees, name) or 1))
    return stated(context.document, *(f"/parallelism/{name}" for name in ordered), "/hardware/gpus_per_node")


RULE = Rule(
    code="MEM201",
    name="world-size",
    severity="error",
    summary="The degrees of parallelism do not multiply to the number of GPUs.",
    doc=__doc__,
    check=check,
    when=miscounted,
    blocking=True,
)
