"""The plan's parallelism around a model: recompute, tensor shards, FSDP1, FSDP2 and DDP.

FSDP makes a unit of every layer and of the root, as accelerate does. Tensor and sequence parallelism is
``parallelize_module``, for layers shaped like Llama's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from memcheck.frameworks.torch.data_parallel import all_gather_dtype, has_adapter_units, uses_flat_parameters
from memcheck.frameworks.torch.step import wrapped_kinds
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.verify.build.model import base_of, blocks_of, encoder_blocks_of
from memcheck.verify.build.tensors import DTYPES
from memcheck.verify.build.trained import trained_parameters
from memcheck.verify.compare import RefusedStepError, UntraceableError


def units_of(model: nn.Module, job: TrainingJob, architecture: Architecture) -> list[nn.Module]:
    """The modules, inner ones first.

    Of a model of text its layers, if its class names them. Of one of pictures Accelerate takes every module of a class
    that the model's or its parts' ``_no_split_modules`` name (accelerate 1.15 utils/fsdp_utils.py,
    ``fsdp2_prepare_auto_wrap_policy``; it stops at a name that no module has, which is then left out of the list by
    hand); a loop of one's own takes the layers of every stack.
    """
    if architecture.vision is None:
        layers = [*encoder_blocks_of(model, architecture), *blocks_of(model, architecture)]
        return layers if wrapped_kinds(job) else []
    inner_first = list(model.modules())[:0:-1]
    if job.framework.unsplit is not None:
        base: Any = base_of(model)
        names = set(base._no_split_modules or ())  # noqa: SLF001
        kinds = tuple({type(module) for module in inner_first if type(module).__name__ in names})
        return [module for module in inner_first if isinstance(module, kinds)]
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [module for module in inner_first if isinstance(module, GradientCheckpointingLayer)]


Mesh = Any
"""A ``DeviceMesh``."""


class Wrapped(Record):
    """A model ready for a step."""

    model: nn.Module
    """What is called."""
    inner: nn.Module
    """What holds the parameters."""
    synchronised: Callable[[bool], AbstractContextManager[Any]]
    """A context in which backward reduces gradients, or does not."""


def recompute(model: nn.Module, job: TrainingJob) -> None:
    """transformers' gradient checkpointing, layer by layer."""
    if job.checkpointing.mode == "none":
        return
    if job.checkpointing.modules:
        _recompute_parts(model, job.checkpointing.modules)
        return
    reentrant = job.checkpointing.reentrant
    options: dict[str, Any] = {"use_reentrant": reentrant}
    every = job.checkpointing.every_n_layers
    if hasattr(model, "activation_checkpointing_enable"):  # transformers 5.20
        model.activation_checkpointing_enable(options, every_n_layers=every)
    elif every == 1:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    else:
        raise RefusedStepError("this transformers recomputes every layer or none", "it learnt every_n_layers later")
    if reentrant and (job.lora is not None or job.freeze):
        model.enable_input_require_grads()  # reentrant recompute needs an input that wants a gradient


def _recompute_parts(model: nn.Module, names: tuple[str, ...]) -> None:
    """Modules of each layer in wrappers of their own."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for module in list(model.modules()):
        for name in names:
            part = getattr(module, name, None)
            if isinstance(part, nn.Module):
                setattr(module, name, checkpoint_wrapper(part))


def wrap(model: nn.Module, job: TrainingJob, architecture: Architecture, mesh: Mesh) -> Wrapped:
    """Apply the plan's parallelism, in the order in which it nests."""
    layout = job.layout
    if layout.tensor > 1:
        parallelize(model, job, architecture, mesh["tensor"])
    if layout.zero_stage == 3 and layout.data > 1:
        layers = units_of(model, job, architecture)
        if uses_flat_parameters(job):
            outer, synchronised = flatten(model, layers, job, mesh)
            return Wrapped(outer, model, synchronised)
        shard(model, layers, job, mesh)
        return Wrapped(model, model, _fsdp_sync(model, job))
    if layout.data > 1:
        return _replicated(model, job, architecture, mesh)
    return Wrapped(model, model, lambda _: nullcontext())


def shard(model: nn.Module, blocks: list[nn.Module], job: TrainingJob, mesh: Mesh) -> None:
    """``fully_shard`` on every layer and on the root."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    recipe = job.recipe
    if job.upcasts_before_sharding:
        for parameter in trained_parameters(model):
            parameter.data = parameter.data.float()
    # what is stored in another dtype is cast, too, where most of it is in that of the products
    casts = recipe.compute != recipe.params or all_gather_dtype(job) is not None
    compute = DTYPES[recipe.compute] if casts else None
    # spelt out where it casts: without it torch 2.15 reduces in the dtype of the shards, not in that of the gradients
    mixed = compute is not None or recipe.reduce != recipe.compute
    reduce = DTYPES[recipe.reduce] if mixed else None
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce)
    ranks = mesh["replicate", "shard"] if job.layout.data > job.layout.shard_group else mesh["shard"]
    for block in blocks:
        fully_shard(block, mesh=ranks, mp_policy=policy, reshard_after_forward=job.layout.reshard_after_forward)
    for ends, reshards in _carved(model, job) if job.groups_embedding_and_head else ():
        fully_shard(ends, mesh=ranks, mp_policy=policy, reshard_after_forward=reshards)
    fully_shard(model, mesh=ranks, mp_policy=policy)  # FSDP2 itself keeps the root gathered until backward is over


def _carved(model: Any, job: TrainingJob) -> Iterator[tuple[Any, bool]]:
    """What Accelerate wraps after the layers, and whether it is resharded after its forward (accelerate 1.15
    utils/fsdp_utils.py, ``fsdp2_prepare_model`` and ``_find_final_norm``).
    """
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    body = getattr(model, model.base_model_prefix, None)
    parts = list(body.children()) if isinstance(body, nn.Module) else []
    norm = [part for part in parts if "Norm" in type(part).__name__][-1:]
    if head is not None and head.weight is table.weight:
        yield [*norm, table, head], False
        return
    yield table, job.layout.reshard_after_forward
    if norm or head is not None:
        yield [*norm, *([head] if head is not None else [])], False


def _fsdp_sync(model: Any, job: TrainingJob) -> Callable[[bool], AbstractContextManager[Any]]:
    def synchronised(last: bool) -> AbstractContextManager[Any]:
        if job.layout.gradient_sync == "last":
            model.set_requires_gradient_sync(last)
        return nullcontext()

    return synchronised


def _replicated(model: nn.Module, job: TrainingJob, architecture: Architecture, mesh: Mesh) -> Wrapped:
    """DDP, which is told that some parameters get no gradient where a tower has such: it stops otherwise."""
    from torch.nn.parallel import DistributedDataParallel

    options = {k: v for k, v in job.options if k in ("bucket_cap_mb", "static_graph", "find_unused_parameters")}
    vision = architecture.vision
    if vision is not None and (vision.idle_blocks or vision.unused_tensors or vision.other_towers):
        options.setdefault("find_unused_parameters", True)
    wrapped = DistributedDataParallel(
        model,
        process_group=mesh["replicate"].get_group(),
        gradient_as_bucket_view=job.layout.gradient_as_bucket_view,
        **options,
    )

    def synchronised(last: bool) -> AbstractContextManager[Any]:
        if last or job.layout.gradient_sync == "every":
            return nullcontext()
        context: AbstractContextManager[Any] = wrapped.no_sync()
        return context

    return Wrapped(wrapped, model, synchronised)


def make_mesh(job: TrainingJob, device: str) -> Mesh:
    """The job's ranks by dimension, outermost first: pipeline, replicas, shards, tensor. None on one rank.

    The process group has to be there already.
    """
    layout = job.layout
    if layout.world_size == 1:
        return None
    from torch.distributed.device_mesh import init_device_mesh

    shards = layout.shard_group if layout.zero_stage == 3 else 1
    sizes = {
        "pipeline": layout.pipeline,
        "replicate": layout.data // shards,
        "shard": shards,
        "tensor": layout.tensor,
    }
    return init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def local_elements(parameters: list[torch.Tensor]) -> int:
    """Number of elements that this rank holds."""
    return sum(p.to_local().numel() if hasattr(p, "to_local") else p.numel() for p in parameters)


def flatten(
    model: nn.Module, blocks: list[nn.Module], job: TrainingJob, mesh: Any
) -> tuple[nn.Module, Callable[[bool], AbstractContextManager[Any]]]:
    """The wrapped model, and a context in which a backward reduces gradients, or does not."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import CustomPolicy

    recipe, layers = job.recipe, {id(block) for block in blocks}
    casts = recipe.compute != recipe.params or all_gather_dtype(job) is not None
    compute = DTYPES[recipe.compute] if casts else None
    mixed = None
    if casts or recipe.reduce != recipe.compute:
        mixed = MixedPrecision(compute, DTYPES[recipe.reduce], cast_forward_inputs=False)

    def unit(module: nn.Module) -> bool:
        return id(module) in layers or (has_adapter_units(job) and _is_trained_leaf(module))

    replicates = job.layout.data > job.layout.shard_group
    shard = mesh["shard"].get_group()
    wrapped: Any = FullyShardedDataParallel(
        model,
        process_group=(shard, mesh["replicate"].get_group()) if replicates else shard,
        sharding_strategy=_strategy(job, replicates=replicates),
        auto_wrap_policy=CustomPolicy(unit),
        mixed_precision=mixed,
        use_orig_params=True,
    )

    for each in FullyShardedDataParallel.fsdp_modules(wrapped) if job.upcasts_before_sharding else ():
        flat: Any = getattr(each, "_flat_param", None)
        if flat is not None and flat.requires_grad:  # accelerate accelerator.py, prepare_model
            flat.data = flat.data.float()
            each._handle._orig_param_dtype = flat.dtype  # noqa: SLF001

    def synchronised(last: bool) -> AbstractContextManager[Any]:
        if last or job.layout.gradient_sync == "every":
            return nullcontext()
        context: AbstractContextManager[Any] = wrapped.no_sync()
        return context

    return wrapped, synchronised


def _strategy(job: TrainingJob, *, replicates: bool) -> Any:
    from torch.distributed.fsdp import ShardingStrategy

    if replicates:
        kept = ShardingStrategy._HYBRID_SHARD_ZERO2  # noqa: SLF001  # its only name
        return ShardingStrategy.HYBRID_SHARD if job.layout.reshard_after_forward else kept
    return ShardingStrategy.FULL_SHARD if job.layout.reshard_after_forward else ShardingStrategy.SHARD_GRAD_OP


def _is_trained_leaf(module: nn.Module) -> bool:
    """What peft's ``fsdp_auto_wrap_policy`` wraps by itself (peft utils/other.py)."""
    weight = getattr(module, "weight", None)
    return not list(module.children()) and weight is not None and bool(weight.requires_grad)


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
