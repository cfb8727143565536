"""Tensor and sequence parallelism by ``parallelize_module``, for layers shaped like Llama's."""

from __future__ import annotations

from typing import Any

from torch import nn

from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.verify.build.model import blocks_of
from memcheck.verify.errors import UntraceableError

PARTS = (
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)
"""Modules of a layer that the plan below knows."""


def parallelize(model: nn.Module, job: TrainingJob, architecture: Architecture, mesh: Any) -> None:
    """Column-parallel inputs, row-parallel outputs, and the residual stream divided over the sequence if asked for.

    Raises:
        UntraceableError: layers of another shape.
    """
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    blocks = blocks_of(model, architecture)
    _check_shape(blocks, architecture)
    divided = job.layout.sequence
    stream = Shard(1) if divided else Replicate()
    on_shards = job.loss.kind == "vocab-parallel"
    logits = Shard(-1) if on_shards else Replicate()

    def row(**layouts: Any) -> Any:
        return RowwiseParallel(output_layouts=stream, use_local_output=not divided, **layouts)

    outer: dict[str, Any] = {
        architecture.paths.embedding: row(input_layouts=Replicate()),
        architecture.paths.head: ColwiseParallel(
            input_layouts=stream, output_layouts=logits, use_local_output=not on_shards
        ),
    }
    if divided and architecture.final_norm is not None:
        outer[architecture.final_norm.name] = SequenceParallel()
    present = {name for name, _ in model.named_modules()}
    parallelize_module(model, mesh, {name: style for name, style in outer.items() if name in present})
    inside: dict[str, Any] = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    inside |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    inside |= {"self_attn.o_proj": row(), "mlp.down_proj": row()}
    if divided:
        inside |= {
            "input_layernorm": SequenceParallel(),
            "post_attention_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            ),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        }
    for block in blocks:
        parallelize_module(block, mesh, inside)


def _check_shape(blocks: nn.ModuleList, architecture: Architecture) -> None:
    for block in blocks:
        names = {name for name, _ in block.named_modules()}
        missing = [part for part in PARTS if part not in names]
        if missing:
            raise UntraceableError(
                f"tensor parallelism is traced for layers shaped like Llama's; {architecture.model_type} has no"
                f" {', '.join(missing)}",
                "verify with --set parallelism.tensor=1",
            )
