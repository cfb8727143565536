"""The plan's parallelism around a model: recompute, tensor shards, FSDP1 and FSDP2, DDP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from memcheck.frameworks.torch.fsdp import flattens, gathered_dtype
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.verify.build.dtypes import DTYPES
from memcheck.verify.build.trained import trained_parameters
from memcheck.verify.build.units import units_of
from memcheck.verify.errors import RefusedStepError

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
        from memcheck.verify.build.tensor_parallel import parallelize

        parallelize(model, job, architecture, mesh["tensor"])
    if layout.zero_stage == 3 and layout.data > 1:
        layers = units_of(model, job, architecture)
        if flattens(job):
            from memcheck.verify.build.flat import flatten

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
    if job.upcast:
        for parameter in trained_parameters(model):
            parameter.data = parameter.data.float()
    # what is stored in another dtype is cast, too, where most of it is in that of the products
    casts = recipe.compute != recipe.params or gathered_dtype(job) is not None
    compute = DTYPES[recipe.compute] if casts else None
    # spelt out where it casts: without it torch 2.15 reduces in the dtype of the shards, not in that of the gradients
    mixed = compute is not None or recipe.reduce != recipe.compute
    reduce = DTYPES[recipe.reduce] if mixed else None
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce)
    ranks = mesh["replicate", "shard"] if job.layout.data > job.layout.shard_group else mesh["shard"]
    for block in blocks:
        fully_shard(block, mesh=ranks, mp_policy=policy, reshard_after_forward=job.layout.reshard_after_forward)
    for ends, reshards in _carved(model, job) if job.carves_ends else ():
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
    if vision is not None and (vision.idle or vision.unused or vision.others):
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
