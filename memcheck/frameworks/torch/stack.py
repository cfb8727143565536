"""What the engine asks of torch's own data parallelism over transformers' models.

Host memory under torch.distributed: FSDP2's offloading, and torch.distributed.checkpoint.

FSDP2's CPUOffloadPolicy pins the shard of every parameter, and its gradient is copied to the host without waiting,
which pins it, too (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _fsdp_collectives.py).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.ranks import Components
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes, weight_bytes
from memcheck.autograd.tensor import ceil_div
from memcheck.frameworks.registry import (
    NO_SAVING,
    HostMemory,
    ModelStateBytes,
    Saving,
    Stack,
    WorstRank,
    block,
    of_node,
    optimizer_on_host,
)
from memcheck.frameworks.torch.pipelining import MESH, MeshGroups, all_to_all_buffers
from memcheck.frameworks.torch.ranks import Worst, training_ranks
from memcheck.frameworks.torch.resident import resident_dtype, shard_numel_of, sharding, states_dtype
from memcheck.job.keys import state_key
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.parameters import parameters_by_group
from memcheck.models.types import Architecture, Rough

STACKED_IN_FILES = ("dbrx", "gpt_oss", "llama4_text", "llama4")
"""Model types whose checkpoints hold experts as one tensor: nothing is stacked while they load."""


def loaded(job: TrainingJob, total: int) -> int:
    """Return the host bytes of a process while it loads weights of ``total`` bytes.

    Weights that keep their dtype are memory-mapped files. Only the experts that transformers stacks are copied.
    """
    return total if job.initialization.weights != job.recipe.params else _stacked(job)


def _stacked(job: TrainingJob) -> int:
    """Count the parameters of experts that transformers stacks (conversion_mapping.py, MergeModulelist)."""
    model = job.architecture
    if isinstance(model, Rough) or not job.framework.runs_transformers:
        return 0
    return 0 if model.model_type in STACKED_IN_FILES else parameters_by_group(model).get("experts", 0)


def states(job: TrainingJob) -> Components:
    """Return the bytes on the host of offloaded parameters, gradients and optimizer states of a node's ranks.

    FSDP2's parameter offload includes gradients and states, even if the plan does not name them.
    """
    if job.parameter_offload != "cpu":
        return optimizer_on_host(job)
    layout = job.layout
    components = zip(("parameters", "gradients", "optimizer_states"), _shards(state_key(job)), strict=True)
    return tuple((name, count * layout.gpus_per_node // layout.pipeline) for name, count in components if count)


def whole_tensors(job: TrainingJob) -> tuple[LocalTensor, ...]:
    """The whole model's tensors, as a tensor-parallel rank has them."""
    return _whole_tensors(state_key(job))


@lru_cache(maxsize=64)
def _whole_tensors(job: TrainingJob) -> tuple[LocalTensor, ...]:
    """Return the tensors of the whole model on one tensor-parallel rank; a ``rough`` model has one per layer."""
    from memcheck.frameworks.torch.tower_tensors import model_tensors

    model = job.architecture
    if isinstance(model, Rough):
        layer = ceil_div(model.parameters, job.layout.tensor * model.layers)
        return tuple(LocalTensor(f"layer {i}", (layer,), trained=True) for i in range(model.layers))
    return tuple(t for tensors in model_tensors(job, model) for t in tensors)


@lru_cache(maxsize=1024)
def _shards(job: TrainingJob) -> tuple[int, int, int]:
    """Return the pinned bytes of parameters, gradients and optimizer states of a rank that would hold every layer."""
    shards = sharding(job)
    parameters = gradients = states = 0
    tensors = whole_tensors(job)
    tensor_counts: dict[int, tuple[LocalTensor, int]] = {}  # layers that are alike share their tensors
    for t in tensors:
        tensor_counts[id(t)] = (t, tensor_counts.get(id(t), (t, 0))[1] + 1)
    for t, count in tensor_counts.values():
        shard_numel = shard_numel_of(job, t, shards.parameters, shards.flat)
        parameters += count * block(weight_bytes(t, resident_dtype(job, t), shard_numel), pinned=True)
        if t.trained:
            gradients += count * block(shard_numel * DTYPE_BYTES[t.dtype or job.recipe.gradients], pinned=True)
            states += count * optimizer_state_bytes(t, shard_numel, job.optimizer.name, states_dtype(job, t))
    return parameters, gradients, states


def saving(job: TrainingJob, unsharded: ModelStateBytes) -> Saving:
    """Return what a checkpoint copies to the host: a full state dict on rank 0, or each rank's part if asynchronous."""
    model, states = ("parameters", unsharded.parameters), ("optimizer_states", unsharded.optimizer_states)
    if job.checkpoint.state_dict != "full":
        if not job.checkpoint.asynchronous:
            return NO_SAVING
        return "every rank copying its part", tuple((name, of_node(job, count)) for name, count in (model, states))
    if job.checkpoint.offload == "none" or not is_sharded(job):
        return NO_SAVING
    return "rank 0 gathering model and optimizer states", (model, states)


def is_sharded(job: TrainingJob) -> bool:
    """Whether data-parallel ranks hold parts of the parameters."""
    return job.layout.zero_stage >= 2 and job.layout.shard_group > 1


HOST = HostMemory(loaded=loaded, laid_out=lambda _job, _total, _room: (), states=states, saving=saving)


def ranks(job: TrainingJob, architecture: Architecture, _arch: str | None, inventory: bool) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank; the GPU decides nothing."""
    return training_ranks(job, architecture, inventory=inventory)


def worst(job: TrainingJob, architecture: Architecture, _arch: str | None) -> WorstRank:
    """What finds the worst rank; the GPU decides nothing."""
    return Worst(job, architecture)


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Return a lower bound of the peak in bytes, from states alone, with which searches rule out plans."""
    from memcheck.frameworks.torch import fsdp_limits

    return fsdp_limits.states_floor(job, architecture)


def trainable(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Count the trained parameters, which differ from all where something is frozen or adapted, and the adapters'
    own.
    """
    from memcheck.frameworks.torch.tower_tensors import trainable_parameters

    return trainable_parameters(job, architecture)


def exchanged(job: TrainingJob) -> MeshGroups:
    """Return the process groups of the device mesh, with the buffers of DeepEP or HybridEP if one dispatches tokens."""
    if job.layout.expert == 1 or job.option("dispatcher", "torch") == "torch":
        return MESH

    return all_to_all_buffers(job) or MESH


STACK = Stack(
    ranks=ranks,
    worst=worst,
    states_floor=states_floor,
    trainable=trainable,
    exchanges=exchanged,
    host=HOST,
)
