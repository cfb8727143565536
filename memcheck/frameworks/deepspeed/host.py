"""What one rank of the DeepSpeed engine keeps in host memory, tensor by tensor.

Read off DeepSpeed 0.19.8: zero/stage_1_and_2.py (``single_partition_of_fp32_groups`` and their ``grad``,
``param_buffer_of_bit16_for_cpu_offload_groups``, ``temp_grad_buffer_for_cpu_offload``, ``accumulated_grads_in_cpu``),
zero/stage3.py (``_create_fp32_partitions``, ``initialize_optimizer_states``, ``grad_partitions_flat_buffer``,
``_create_param_groups_fp16_flat_cpu_memory``), zero/partition_parameters.py (``_partition_param``),
swap_tensor/optimizer_utils.py and utils.py (``SwapBufferManager``), swap_tensor/partitioned_param_swapper.py,
zero/offload_config.py (defaults), ops/adam/cpu_adam.py.

Pinned memory comes from PyTorch's CachingHostAllocator, which rounds a block up to a power of two and keeps it when it
is freed (ATen/core/CachingHostAllocator.h, ``roundSize``); buffers for NVMe are locked by DeepSpeed's own handle, which
rounds to kilobytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from memcheck.accounts.ranks import Components
from memcheck.accounts.state import STATES_PER_PARAMETER, LocalTensor
from memcheck.autograd.tensor import ceil_div, round_up
from memcheck.frameworks.deepspeed.engine import accumulation_dtype, elements, partitions
from memcheck.frameworks.host import NO_SAVING, HostMemory, ModelStateBytes, Saving, block
from memcheck.frameworks.torch.host import loaded, whole_tensors
from memcheck.job.types import DTYPE_BYTES, TrainingJob

LEAST_SWAPPED = 1 << 20
"""Bytes of a tensor that goes to NVMe (swap_tensor/utils.py, ``MIN_AIO_BYTES``)."""
ALIGNMENT = 1024
OPTIMIZER_BUFFERS, PARAMETER_BUFFERS = 4, 5
"""``buffer_count`` of offload_optimizer and of offload_param."""
BUFFER_ELEMENTS = 100_000_000
"""``buffer_size`` of offload_param."""
MOST_IN_CPU = 1_000_000_000
"""``max_in_cpu``: elements of a rank that stay in host memory, in addition to those on NVMe."""


def engine_host(job: TrainingJob, tensors: Sequence[LocalTensor]) -> tuple[tuple[str, int], ...]:
    """Return the components that offloading keeps in one rank's host memory, with their bytes.

    ``tensors``: the parameters of the rank before ZeRO divides them, in the model's order.
    """
    components_bytes: Counter[str] = Counter()
    if job.optimizer.offload != "none":
        trained_numels = [t.numel for t in tensors if t.trained]
        if job.layout.zero_stage == 3:
            components_bytes.update(_sharded_optimizer(job, trained_numels))
        else:
            components_bytes.update(_partitioned_optimizer(job, trained_numels))
    if job.parameter_offload != "none":
        components_bytes.update(_parameters(job, tensors))
    return tuple((name, n_bytes) for name, n_bytes in components_bytes.items() if n_bytes)


def pins(job: TrainingJob) -> bool:
    """Return whether host buffers are pinned: ``pin_memory``, true by default."""
    return bool(job.option("pin_memory", True))


def _master(job: TrainingJob) -> int:
    """Return the bytes of one element of the master weights that the optimizer steps on."""
    return DTYPE_BYTES[job.recipe.master if job.recipe.master != "none" else "fp32"]


def _states(job: TrainingJob, partition_numel: int) -> int:
    """Return the bytes of the optimizer's states of a partition. Its first step makes them, not pinned."""
    return STATES_PER_PARAMETER[job.optimizer.name] * partition_numel * DTYPE_BYTES[job.recipe.optimizer_states]


def _partitioned_optimizer(job: TrainingJob, trained_numels: list[int]) -> dict[str, int]:
    """Return bytes by component of the optimizer that ZeRO-1 or ZeRO-2 offloads, on one rank's host.

    ``trained_numels``: elements of each trained tensor. The updated partition is cast into a buffer of its own before
    it is copied to the GPU.
    """
    ranks, parameter_item_bytes, pinned = max(1, job.layout.shard_group), DTYPE_BYTES[job.recipe.compute], pins(job)
    partition_numel, master_item_bytes = ceil_div(sum(trained_numels), ranks), _master(job)
    gradients_bytes = block(partition_numel * master_item_bytes, pinned)
    if job.layout.zero_stage == 2 and job.gradient_accumulation_steps > 1 and master_item_bytes == 4:
        # each whole tensor that the partition touches has a buffer in which its micro-batches are summed
        sums_bytes = (
            sum(block(n * parameter_item_bytes, pinned) for n, _ in tensors)
            for tensors in partitions(trained_numels, ranks)
        )
        gradients_bytes += max(sums_bytes, default=0)
    return {
        "master_weights": block(partition_numel * master_item_bytes, pinned),
        "gradients": gradients_bytes,
        "optimizer_states": _states(job, partition_numel),
        "communication_buffers": block(partition_numel * parameter_item_bytes, pinned)
        + block(max(trained_numels, default=0) * parameter_item_bytes, pinned),
    }


def _sharded_optimizer(job: TrainingJob, trained_numels: list[int]) -> dict[str, int]:
    """Return bytes by component of the optimizer that ZeRO-3 offloads to the host or to NVMe, on one rank's host.

    ``trained_numels``: elements of each trained tensor. Gradients exist in the accumulation's dtype, and once more in
    the master weights' dtype for the optimizer, sub-group by sub-group.
    """
    ranks, pinned, master_item_bytes = max(1, job.layout.shard_group), pins(job), _master(job)
    shards = [ceil_div(n, ranks) for n in trained_numels]
    partition_numel = sum(shards)
    sums_bytes = block(partition_numel * DTYPE_BYTES[accumulation_dtype(job)], pinned)
    sub_groups = _sub_groups(shards, elements(job, "sub_group_size", job.architecture.hidden_size))
    if job.optimizer.offload == "nvme":
        largest_bytes = max(sub_groups, default=0) * master_item_bytes
        unswapped_bytes = sum(n * master_item_bytes for n in shards if n * master_item_bytes < LEAST_SWAPPED)
        swap_buffers = int(str(job.option("buffer_count", OPTIMIZER_BUFFERS)))
        return {
            "gradients": sums_bytes + largest_bytes + unswapped_bytes,
            "communication_buffers": swap_buffers * _aligned(largest_bytes),
        }
    return {
        "master_weights": partition_numel * master_item_bytes,
        "gradients": sums_bytes + sum(block(n * master_item_bytes, pinned) for n in sub_groups),
        "optimizer_states": _states(job, partition_numel),
    }


def _sub_groups(shards: Sequence[int], minimum_numel: int) -> list[int]:
    """Return the elements of each sub-group: shards are joined until they have ``minimum_numel`` elements.

    ``shards``: elements of each tensor's shard. Source: ``_create_fp16_sub_groups``.
    """
    if sum(shards) <= minimum_numel:
        return [sum(shards)]
    groups, group_numel = [], 0
    for shard in shards:
        group_numel += shard
        if group_numel >= minimum_numel:
            groups.append(group_numel)
            group_numel = 0
    return [*groups, group_numel] if group_numel else groups


def _parameters(job: TrainingJob, tensors: Sequence[LocalTensor]) -> dict[str, int]:
    """Return bytes by component of the parameters that ZeRO-3 offloads to the host or to NVMe, on one rank's host.

    Partitions are pinned one by one when they are made. Then the trained ones move to one flat buffer, and the caching
    host allocator keeps the blocks that this buffer replaces.
    """
    ranks, item_bytes, pinned = max(1, job.layout.shard_group), DTYPE_BYTES[job.recipe.params], pins(job)
    shards = [(t.trained, ceil_div(t.numel, ranks)) for t in tensors]
    flat_numel = sum(n for trained, n in shards if trained)
    frozen_bytes = sum(block(n * item_bytes, pinned) for trained, n in shards if not trained)
    if job.parameter_offload == "cpu":
        replaced_bytes = sum(block(n * item_bytes, True) for trained, n in shards if trained) if pinned else 0
        return {"parameters": block(flat_numel * item_bytes, True) + frozen_bytes, "fragmentation": replaced_bytes}
    buffer_count = int(str(job.option("buffer_count", PARAMETER_BUFFERS)))
    buffer_numel = int(str(job.option("buffer_size", BUFFER_ELEMENTS)))
    unswapped_bytes = sum(block(n * item_bytes, pinned) for _, n in shards if n * item_bytes < LEAST_SWAPPED)
    buffers_bytes = buffer_count * _aligned(buffer_numel * item_bytes)
    if flat_numel > MOST_IN_CPU:  # swapped elements pass through a buffer as large as a sub-group
        sub_groups = _sub_groups([n for trained, n in shards if trained], elements(job, "sub_group_size", 0))
        buffers_bytes += _aligned(max(sub_groups) * item_bytes)
    return {
        "parameters": block(min(flat_numel, MOST_IN_CPU) * item_bytes, True) + unswapped_bytes,
        "communication_buffers": buffers_bytes,
    }


def _aligned(n_bytes: int) -> int:
    """Round bytes up to the kilobytes in which DeepSpeed locks memory for NVMe."""
    return round_up(n_bytes, ALIGNMENT)


def laid_out(job: TrainingJob, model_numel: int, gpu_bytes: int) -> Components:
    """Return the host memory of a node, by component in bytes, while DeepSpeed flattens the parameters.

    Stages 1 and 2 flatten a group on the GPU if its memory has room for a second copy. If not, they do so on the host,
    where tensors and flat buffer are alive together (zero/stage_1_and_2.py, ``flatten_on_accelerator``). Stage 3 moves
    every rank's partition through host memory (zero/utils.py, ``defragment``). ``model_numel``: elements of the model.
    ``gpu_bytes``: bytes of a GPU without its CUDA context.
    """
    layout, item_bytes = job.layout, DTYPE_BYTES[job.recipe.params]
    if layout.zero_stage == 0 or job.method != "full":
        return ()
    if layout.zero_stage == 3:
        if job.parameter_offload != "none":
            return ()
        partition = ceil_div(model_numel, layout.tensor * max(1, layout.shard_group))
        return (("parameters", layout.gpus_per_node * partition * item_bytes),)
    rank_bytes = ceil_div(model_numel, layout.tensor) * item_bytes
    if 2 * rank_bytes <= gpu_bytes:
        return ()
    return (("parameters", layout.gpus_per_node * 2 * rank_bytes),)


def saving(job: TrainingJob, model_bytes: ModelStateBytes) -> Saving:
    """Return what moves to a node's host memory when a checkpoint is saved: a description, and bytes by component.

    ``model_bytes``: bytes of the whole model's states. Only full state dicts need host memory: ZeRO-3 gathers 16-bit
    weights on rank 0, and other stages clone the model on every rank.
    """
    if job.layout.zero_stage == 3:
        if job.checkpoint.state_dict != "full":
            return NO_SAVING
        return "rank 0 gathering the 16-bit weights", (("parameters", model_bytes.parameters),)
    if job.checkpoint.state_dict != "full":
        return NO_SAVING
    # Trainer.save_model calls get_state_dict on every rank, which clones to the host (clone_tensors_for_torch_save)
    processes = job.layout.gpus_per_node
    rank_bytes = ceil_div(model_bytes.parameters, job.layout.tensor)
    return f"{processes} processes cloning the model's state dict", (("parameters", processes * rank_bytes),)


def states(job: TrainingJob) -> Components:
    """Return the components that the engine keeps in the host memory of one node, with their bytes."""
    components_bytes = engine_host(job, whole_tensors(job))
    return tuple((name, job.layout.gpus_per_node * n_bytes) for name, n_bytes in components_bytes)


HOST = HostMemory(loaded=loaded, laid_out=laid_out, states=states, saving=saving)
