"""FSDP2 pads the experts of a layer, because there are more shards than experts.

## What it does

Reports layers whose stacked experts FSDP2 gathers with a quarter or more of padding, 256 MiB at least.

## Why it matters

`fully_shard` cuts the first dimension of each tensor and pads it to a multiple of the ranks. Experts are stacked as
`[experts, outputs, inputs]`: the first dimension is their number. With 8 experts over 64 ranks, eight ranks hold an
expert each and 56 hold nothing. Each of the 64 still sends as much as the largest shard, so gathering and reducing a
layer takes eight times its size.

## Example

    model: mixtral-8x7b                                # 8 experts
    hardware: {gpu: h100-80gb, gpus_per_node: 8, nodes: 8}
    parallelism: {zero_stage: 3}
    training: {framework: huggingface}

## How to fix

Shard over as many ranks as there are experts (`shard_group: 8`). Or use a framework with expert parallelism
(`parallelism: {expert: 8}`).

## Options

None.

## Source

torch 2.13 `distributed/fsdp/_fully_shard/_fsdp_param.py` (`padded_sharded_param_size`).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.frameworks.torch.fsdp_limits import PaddedLayer, padded_layer, ranks_without_padding
from memcheck.job.types import TrainingJob
from memcheck.plan.finding import Finding
from memcheck.rules.budget import gib
from memcheck.rules.types import Rule, RuleContext, stated
from memcheck.rules.when import shards_experts


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding for the layer that is padded most."""
    job, model = context.training, context.architecture
    layer = padded_layer(job, model) if job is not None and model is not None else None
    if job is None or layer is None:
        return
    yield RULE.finding(
        context,
        f"FSDP2 cuts {layer.experts} experts of a layer into {layer.shards} shards and pads them: the layer is "
        f"gathered as {gib(layer.padded_bytes)}, not {gib(layer.unpadded_bytes)}",
        stated(context.document, "/parallelism/shard_group", "/parallelism/zero_stage"),
        help=_help(context, job, layer),
        related=(("the model", "/model"),),
    )


def _help(context: RuleContext, job: TrainingJob, layer: PaddedLayer) -> str:
    """Say how to avoid the padding of experts to equal shards."""
    if job.layout.expert > 1:
        return f"choose degrees that divide the {layer.experts} experts of a rank evenly"
    most = ranks_without_padding(job, layer)
    grouped = f"let every {most} ranks hold all shards (`shard_group: {most}`)"
    deals = context.framework is not None and "expert" in context.framework.parallelism.degrees
    return f"{grouped}, or deal the experts out (`parallelism.expert`)" if deals else grouped


RULE = Rule(
    code="MEM218",
    name="padded-shards",
    severity="warning",
    summary="FSDP2 pads the experts of a layer, because there are more shards than experts.",
    doc=__doc__,
    check=check,
    when=shards_experts,
)
