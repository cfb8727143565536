"""FSDP1 around a model: a unit for every layer and the root, as accelerate wraps them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from memcheck.frameworks.torch.fsdp import gathered_dtype, leaves_apart
from memcheck.job.types import TrainingJob
from memcheck.verify.build.dtypes import DTYPES


def flatten(
    model: nn.Module, blocks: list[nn.Module], job: TrainingJob, mesh: Any
) -> tuple[nn.Module, Callable[[bool], AbstractContextManager[Any]]]:
    """The wrapped model, and a context in which a backward reduces gradients, or does not."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import CustomPolicy

    recipe, layers = job.recipe, {id(block) for block in blocks}
    casts = recipe.compute != recipe.params or gathered_dtype(job) is not None
    compute = DTYPES[recipe.compute] if casts else None
    mixed = None
    if casts or recipe.reduce != recipe.compute:
        mixed = MixedPrecision(compute, DTYPES[recipe.reduce], cast_forward_inputs=False)

    def unit(module: nn.Module) -> bool:
        return id(module) in layers or (leaves_apart(job) and _is_trained_leaf(module))

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

    for each in FullyShardedDataParallel.fsdp_modules(wrapped) if job.upcast else ():
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
