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
    """Components and bytes. ``tensors``: the parameters of the rank before ZeRO divides them, in the model's order."""
    found: Counter[str] = Counter()
    if job.optimizer.offload != "none":
        trained = [t.numel for t in tensors if t.trained]
        if job.layout.zero_stage == 3:
            found.update(_sharded_optimizer(job, trained))
        else:
            found.update(_partitioned_optimizer(job, trained))
    if job.parameter_offload != "none":
        found.update(_parameters(job, tensors))
    return tuple((name, count) for name, count in found.items() if count)


def pins(job: TrainingJob) -> bool:
    """``pin_memory``, which is true unless the configuration says otherwise."""
    return bool(job.option("pin_memory", True))


def _master(job: TrainingJob) -> int:
    """Bytes of one element of the copy that the optimizer steps on."""
    return DTYPE_BYTES[job.recipe.master if job.recipe.master != "none" else "fp32"]


def _states(job: TrainingJob, partition: int) -> int:
    """Made by the optimizer's first step, like its fp32 partition, and not pinned."""
    return STATES_PER_PARAMETER[job.optimizer.name] * partition * DTYPE_BYTES[job.recipe.optimizer_states]


def _partitioned_optimizer(job: TrainingJob, trained: list[int]) -> dict[str, int]:
    """ZeRO-1 and 2. The updated partition is cast into a buffer of its own before it is copied to the GPU."""
    ways, item, pinned = max(1, job.layout.shard_group), DTYPE_BYTES[job.recipe.compute], pins(job)
    partition, master = -(-sum(trained) // ways), _master(job)
    gradients = block(partition * master, pinned)
    if job.layout.zero_stage == 2 and job.gradient_accumulation_steps > 1 and master == 4:
        # each whole tensor that the partition touches has a buffer in which its micro-batches are summed
        held = (sum(block(n * item, pinned) for n, _ in mine) for mine in partitions(trained, ways))
        gradients += max(held, default=0)
    return {
        "master_weights": block(partition * master, pinned),
        "gradients": gradients,
        "optimizer_states": _states(job, partition),
        "communication_buffers": block(partition * item, pinned) + block(max(trained, default=0) * item, pinned),
    }


def _sharded_optimizer(job: TrainingJob, trained: list[int]) -> dict[str, int]:
    """ZeRO-3: gradients in the accumulation's dtype, and in fp32 for the optimizer, sub-group by sub-group."""
    ways, pinned, master = max(1, job.layout.shard_group), pins(job), _master(job)
    shards = [-(-n // ways) for n in trained]
    partition = sum(shards)
    summed = block(partition * DTYPE_BYTES[accumulation_dtype(job)], pinned)
    groups = _sub_groups(shards, elements(job, "sub_group_size", job.architecture.hidden_size))
    if job.optimizer.offload == "nvme":
        largest = max(groups, default=0) * master
        small = sum(n * master for n in shards if n * master < LEAST_SWAPPED)
        count = int(str(job.option("buffer_count", OPTIMIZER_BUFFERS)))
        return {"gradients": summed + largest + small, "communication_buffers": count * _aligned(largest)}
    return {
        "master_weights": partition * master,
        "gradients": summed + sum(block(n * master, pinned) for n in groups),
        "optimizer_states": _states(job, partition),
    }


def _sub_groups(shards: Sequence[int], least: int) -> list[int]:
    """Sizes of the sub-groups, in elements: shards are joined until they have ``least`` (_create_fp16_sub_groups)."""
    if sum(shards) <= least:
        return [sum(shards)]
    found, open_group = [], 0
    for n in shards:
        open_group += n
        if open_group >= least:
            found.append(open_group)
            open_group = 0
    return [*found, open_group] if open_group else found


def _parameters(job: TrainingJob, tensors: Sequence[LocalTensor]) -> dict[str, int]:
    """ZeRO-3's partitions: pinned one by one when they are made, then those that are trained in one flat buffer.

    The blocks that the flat buffer replaces stay with the allocator.
    """
    ways, item, pinned = max(1, job.layout.shard_group), DTYPE_BYTES[job.recipe.params], pins(job)
    shards = [(t.trained, -(-t.numel // ways)) for t in tensors]
    flat = sum(n for trained, n in shards if trained)
    frozen = sum(block(n * item, pinned) for trained, n in shards if not trained)
    if job.parameter_offload == "cpu":
        kept = sum(block(n * item, True) for trained, n in shards if trained) if pinned else 0
        return {"parameters": block(flat * item, True) + frozen, "fragmentation": kept}
    count = int(str(job.option("buffer_count", PARAMETER_BUFFERS)))
    size = int(str(job.option("buffer_size", BUFFER_ELEMENTS)))
    small = sum(block(n * item, pinned) for _, n in shards if n * item < LEAST_SWAPPED)
    buffers = count * _aligned(size * item)
    if flat > MOST_IN_CPU:  # what does not stay goes through a buffer as large as a sub-group
        groups = _sub_groups([n for trained, n in shards if trained], elements(job, "sub_group_size", 0))
        buffers += _aligned(max(groups) * item)
    return {"parameters": block(min(flat, MOST_IN_CPU) * item, True) + small, "communication_buffers": buffers}


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def laid_out(job: TrainingJob, total: int, room: int) -> Components:
    """What DeepSpeed moves to the host to lay its parameters out anew.

    Stages 1 and 2 flatten a group on the GPU if its memory has room for a second copy. If not, they do so on the host,
    where tensors and flat buffer are alive together (zero/stage_1_and_2.py, ``flatten_on_accelerator``). Stage 3 moves
    every rank's partition through host memory (zero/utils.py, ``defragment``). ``room``: bytes of a GPU without its
    context.
    """
    layout, size = job.layout, DTYPE_BYTES[job.recipe.params]
    if layout.zero_stage == 0 or job.method != "full":
        return ()
    if layout.zero_stage == 3:
        if job.parameter_offload != "none":
            return ()
        partition = -(-total // (layout.tensor * max(1, layout.shard_group)))
        return (("parameters", layout.gpus_per_node * partition * size),)
    rank = -(-total // layout.tensor) * size
    if 2 * rank <= room:
        return ()
    return (("parameters", layout.gpus_per_node * 2 * rank),)


def saving(job: TrainingJob, whole: ModelStateBytes) -> Saving:
    """Full state dicts alone: ZeRO-3 gathers 16-bit weights on rank 0, other stages clone the model everywhere."""
    if job.layout.zero_stage == 3:
        if job.checkpoint.state_dict != "full":
            return NO_SAVING
        return "rank 0 gathering the 16-bit weights", (("parameters", whole.parameters),)
    if job.checkpoint.state_dict != "full":
        return NO_SAVING
    # Trainer.save_model calls get_state_dict on every rank, which clones to the host (clone_tensors_for_torch_save)
    count = job.layout.gpus_per_node
    per_rank = -(-whole.parameters // job.layout.tensor)
    return f"{count} processes cloning the model's state dict", (("parameters", count * per_rank),)


def states(job: TrainingJob) -> Components:
    """What the engine keeps in the memory of one node."""
    found = engine_host(job, whole_tensors(job))
    return tuple((name, job.layout.gpus_per_node * count) for name, count in found)


HOST = HostMemory(loaded=loaded, laid_out=laid_out, states=states, saving=saving)
