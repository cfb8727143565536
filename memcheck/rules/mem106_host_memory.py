"""What the processes of a node keep in host memory does not fit into it.

## What it does

Adds up what the processes of a node hold in host memory, per component and at each moment of a run. Compares the
highest sum with `hardware.host_memory_gib`. The moments:

- `load`: the processes build the model;
- `init`: DeepSpeed lays out its buffers;
- `step`: offloaded optimizer states, parameters and activations;
- `save`: a checkpoint is written.

## Why it matters

The Linux out-of-memory killer ends the job without a traceback. It may come before the first step, when eight
processes each hold a model, or hours later, when rank 0 gathers it.

## Example

    model: llama-3.3-70b
    hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 4, host_memory_gib: 1024}
    parallelism: {zero_stage: 3}
    training: {framework: huggingface, precision: bf16-mixed}     # 8 processes x 70 billion fp32 parameters: 2103 GiB

## How to fix

- Load on one process per node, or give only the shards memory: `training.initialization: rank0` or `meta`.
- Save every rank's part: `training.checkpoint: sharded`.
- Spread offloaded states over more nodes, offload less, or offload to NVMe (`deepspeed` only).

## Options

`hardware.host_memory_gib`; without it nothing is checked.

## Source

transformers' `core_model_loading.py`, accelerate's `utils/fsdp_utils.py`, torch's `distributed/_state_dict_utils.py`.
DeepSpeed keeps fp32 master weights, both Adam states, gradients and buffers of the shard in host memory
(`deepspeed/runtime/zero/stage_1_and_2.py`, `stage3.py`). They are pinned in blocks that are powers of two
(`ATen/core/CachingHostAllocator.h`).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.memory.fit import host_excess
from memcheck.plan.finding import Finding
from memcheck.rules.budget import component, gib, in_host, lacking, listed
from memcheck.rules.types import MEASURED, Rule, RuleContext, stated
from memcheck.rules.when import states_host_memory

KEYS = {
    "load": ("/training/initialization/place", "/training/initialization", "/training/precision"),
    "init": ("/parallelism/zero_stage",),
    "step": (
        "/training/optimizer/offload",
        "/training/offload/parameters",
        "/training/activation_checkpointing/offload",
    ),
    "save": ("/training/checkpoint/state_dict", "/training/checkpoint", "/parallelism/zero_stage"),
}
"""What decides a moment, by preference."""
HELP = {
    "load": "make the model where only the shards get memory, or in one process of a node",
    "init": "shard the parameters, or take GPUs with room for a second copy of them",
    "step": "offload less, or spread the shards over more nodes",
    "save": "save every rank's part instead of the gathered state, or the model alone",
}


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when the predicted host bytes of a node exceed its memory."""
    estimate, host = context.estimate, context.host_bytes
    if estimate is None or host is None:
        return
    above = host_excess(estimate, host)
    if not above:
        return
    moment, *rest = above
    # A checkpoint only adds to what the steps hold: where those exceed the memory, they are what has to change.
    cause = "step" if moment.name == "save" and any(each.name == "step" for each in rest) else moment.name
    gpus = context.layout.gpus_per_node
    others = "".join(f"; {gib(m.bytes)} {in_host(m, gpus)}" for m in rest)
    parts = listed(f"{component(name)} {gib(count)}" for name, count in moment.components)
    yield RULE.finding(
        context,
        f"{lacking(moment, host, gpus)}; {parts}{others}",
        stated(context.document, *KEYS[cause], "/hardware/host_memory_gib"),
        help=HELP[cause],
        related=(("memory of a node", "/hardware/host_memory_gib"),),
    )


RULE = Rule(
    code="MEM106",
    name="host-memory",
    severity="error",
    summary="What the processes of a node keep in host memory does not fit into it.",
    doc=__doc__,
    check=check,
    when=states_host_memory,
    precision=MEASURED,
    needs_estimate=True,
)
