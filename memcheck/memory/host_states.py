"""Host memory per node for what is offloaded to it while the steps run.

FSDP2's CPUOffloadPolicy pins the shard of every parameter, and its gradient is copied to the host without waiting,
which pins it, too (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _fsdp_collectives.py). What DeepSpeed's engine
keeps is in :mod:`memcheck.frameworks.deepspeed.host`.
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import STATES_PER_PARAMETER, LocalTensor, optimizer_state_bytes, weight_bytes
from memcheck.accounts.unit import Part
from memcheck.frameworks.deepspeed.host import block, engine_host
from memcheck.frameworks.torch.rank_units import part_units
from memcheck.frameworks.torch.resting import resting_dtype, shard_of, sharding, states_dtype
from memcheck.frameworks.torch.states import timeless
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Rough


def host_states(job: TrainingJob) -> tuple[tuple[str, int], ...]:
    """Components and bytes that the ranks of one node keep in host memory."""
    if job.framework == "deepspeed":
        found = engine_host(job, _tensors(job))
        return tuple((name, job.layout.gpus_per_node * count) for name, count in found)
    if job.framework == "megatron":
        return _megatron(job)
    return _sharded(job) if job.parameter_offload == "cpu" else _megatron(job)


def _tensors(job: TrainingJob) -> tuple[LocalTensor, ...]:
    """The whole model's tensors, as a tensor-parallel rank has them."""
    return _remembered(timeless(job))


@lru_cache(maxsize=64)
def _remembered(job: TrainingJob) -> tuple[LocalTensor, ...]:
    model = job.architecture
    if isinstance(model, Rough):
        layer = -(-model.parameters // (job.layout.tensor * model.layers))
        return tuple(LocalTensor(f"layer {i}", (layer,), trained=True) for i in range(model.layers))
    units = part_units(job, model, Part(first=0, last=model.num_layers, embedding=True, head=True))
    return tuple(t for unit in units for t in unit.tensors)


def _sharded(job: TrainingJob) -> tuple[tuple[str, int], ...]:
    """FSDP2 takes gradients and states along, whether the plan names them or not."""
    layout = job.layout
    found = zip(("parameters", "gradients", "optimizer_states"), _shards(timeless(job)), strict=True)
    return tuple((name, count * layout.gpus_per_node // layout.pipeline) for name, count in found if count)


@lru_cache(maxsize=1024)
def _shards(job: TrainingJob) -> tuple[int, int, int]:
    """Parameters, gradients and optimizer states of a rank that would hold every layer."""
    cut = sharding(job)
    parameters = gradients = states = 0
    for t in _tensors(job):
        mine = shard_of(job, t, cut.parameters, cut.flat)
        parameters += block(weight_bytes(t, resting_dtype(job, t), mine), pinned=True)
        if t.trained:
            gradients += block(mine * DTYPE_BYTES[t.dtype or job.recipe.gradients], pinned=True)
            states += optimizer_state_bytes(t, mine, job.optimizer.name, states_dtype(job, t))
    return parameters, gradients, states


def _megatron(job: TrainingJob) -> tuple[tuple[str, int], ...]:
    """Optimizer states, master weights and their gradients, of every rank's part."""
    layout, model = job.layout, job.architecture
    total = model.parameters if isinstance(model, Rough) else count_parameters(model)
    copies = max(1, layout.data * layout.context)
    if layout.zero_stage >= 1:
        copies = max(1, layout.data * layout.context // layout.shard_group)
    per_node = total * copies * layout.gpus_per_node // layout.world_size
    states = per_node * STATES_PER_PARAMETER[job.optimizer.name] * DTYPE_BYTES[job.recipe.optimizer_states]
    if job.optimizer.offload != "cpu":
        return ()
    found = (("optimizer_states", states), ("master_weights", per_node * 4), ("gradients", per_node * 4))
    return tuple((name, count) for name, count in found if count)
