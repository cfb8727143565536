"""What is offloaded does not fit into the nodes' memory.

## What it does

Adds up, per node and component, what the plan keeps in host memory (offloaded optimizer states, parameters and
activations with their pinned buffers, for every GPU of the node) and compares it with `hardware.host_memory_gib`.

## Why it matters

Offloading moves the problem. The Linux out-of-memory killer ends the job without a traceback.

## Example

    hardware: {gpu: a100-80gb, gpus_per_node: 8, host_memory_gib: 512}
    training: {optimizer: {name: adamw, offload: cpu}}     # a 70B model: 12 bytes a parameter, 784 GiB

## How to fix

Spread the offloaded state over more nodes, offload less, or offload to NVMe (`deepspeed` only).

## Options

`hardware.host_memory_gib`; without it nothing is checked.

## Source

DeepSpeed keeps fp32 master weights and both Adam states of the shard in pinned host memory
(`deepspeed/runtime/zero/stage_1_and_2.py`, `stage3.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.finding import Finding
from memcheck.rules.place import stated
from memcheck.rules.types import MEASURED, Context, Rule
from memcheck.rules.words import GIB, component, gib, listed


def check(context: Context) -> Iterator[Finding]:
    """One finding when the predicted host bytes of a node exceed its memory."""
    estimate, host = context.estimate, context.plan.hardware.host_memory_gib
    if estimate is None or host is None or estimate.host_bytes_per_node <= host * GIB:
        return
    pointer = stated(
        context.document,
        "/training/optimizer/offload",
        "/training/offload/parameters",
        "/training/activation_checkpointing/offload",
        "/hardware/host_memory_gib",
    )
    parts = listed(f"{component(name)} {gib(count)}" for name, count in estimate.host_components)
    yield RULE.finding(
        context,
        f"a node needs {gib(estimate.host_bytes_per_node)} of host memory for what is offloaded by its "
        f"{context.layout.gpus_per_node} GPUs, and has {gib(int(host * GIB))}; {parts}",
        pointer,
        help="offload less, or spread the shards over more nodes",
        related=(("memory of a node", "/hardware/host_memory_gib"),),
    )


RULE = Rule(
    "MEM106",
    "host-memory",
    "error",
    "What is offloaded does not fit into the nodes' memory.",
    __doc__,
    check,
    MEASURED,
    needs_estimate=True,
)
