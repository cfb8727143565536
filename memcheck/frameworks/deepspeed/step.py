"""When the DeepSpeed engine takes and frees its buffers in a step.

What one rank of the DeepSpeed engine keeps in host memory, tensor by tensor.

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

from memcheck.accounts.program import NOTHING, Amount, NamedCurve, Recorder
from memcheck.accounts.ranks import Components
from memcheck.accounts.state import STATES_PER_PARAMETER, LocalTensor
from memcheck.autograd.tensor import ceil_div, round_up
from memcheck.frameworks.deepspeed.engine import (
    EngineBuffers,
    accumulation_dtype,
    elements,
    engine_buffers,
    gathered_at_once,
    kept_whole,
    partitions,
    sums_apart,
)
from memcheck.frameworks.registry import NO_SAVING, Engine, HostMemory, ModelStateBytes, Saving, block
from memcheck.frameworks.torch.data_parallel import FIRST_OF_PAIR, DataParallel, MicroBatch, NamedUnit, StepUnits
from memcheck.frameworks.torch.stack import loaded, whole_tensors
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.record import Record


class ZeroEngine(Record):
    """The settings of DeepSpeed's engine that decide a step, and which of its buffers are not empty."""

    stage: int
    """ZeRO's stage, 0 to 3."""
    accumulates: bool
    """Micro-batches are accumulated."""
    buffers_present: tuple[bool, ...]
    """For each field of :class:`EngineBuffers`: whether it is not zero. A field of :data:`FACTS` has its own value."""

    @property
    def sizes(self) -> int:
        """How many buffers there are."""
        return sum(
            there for name, there in zip(EngineBuffers._fields, self.buffers_present, strict=True) if name not in FACTS
        )

    def hooks(self, recorder: Recorder, step_units: StepUnits, first: int) -> EngineStep:
        """Return the hooks of one step, whose buffers get the indices of sizes from ``first`` on."""
        fields: dict[str, int | bool] = {}
        for name, there in zip(EngineBuffers._fields, self.buffers_present, strict=True):
            if name in FACTS:
                fields[name] = there
            elif there:
                fields[name] = first
                first += 1
        buffers = EngineBuffers(**fields)  # type: ignore[arg-type]
        return EngineStep(recorder, step_units, self, buffers)


FACTS = ("releases_head", "reduces_after_backward", "reduces_once", "copies_to_buffer", "adds_in_place")
"""Fields of :class:`EngineBuffers` that are no sizes."""


def engine_step(job: TrainingJob, units: Sequence[tuple[LocalTensor, ...]]) -> tuple[ZeroEngine, tuple[int, ...]]:
    """Return how the engine runs a step, and the bytes of its buffers one after the other.

    ``units``: the parameters of each unit of the rank.
    """
    buffers = engine_buffers(job, units, recomputes=job.checkpointing.mode == "full")
    sizes = [n_bytes for name, n_bytes in zip(buffers._fields, buffers, strict=True) if n_bytes and name not in FACTS]
    accumulates = job.gradient_accumulation_steps > 1
    return ZeroEngine(job.layout.zero_stage, accumulates, tuple([bool(n_bytes) for n_bytes in buffers])), tuple(sizes)


def saves_inputs(job: TrainingJob) -> bool:
    """Whether ZeRO-3 puts a function of its own in place of ``F.linear`` (``memory_efficient_linear``)."""
    return job.layout.zero_stage == 3 and bool(job.option("memory_efficient_linear", default=True))


class EngineStep(DataParallel):
    """The hooks of DeepSpeed's engine in one step."""

    def __init__(self, recorder: Recorder, step_units: StepUnits, options: ZeroEngine, buffers: EngineBuffers) -> None:
        """``buffers``: the engine's buffers, with indices of sizes instead of bytes."""
        super().__init__(recorder, step_units)
        self.buffers, self.stage = buffers, options.stage
        moves_at_once = not options.accumulates and not buffers.reduces_after_backward and buffers.copies_to_buffer
        self.moves_gradients = self.stage >= 2 or (self.stage == 1 and moves_at_once)
        """Whether hooks move each gradient to its bucket and partition at once; else all gradients are kept."""
        self._buckets = NOTHING
        self._reducing = NOTHING
        self._micro_batch = MicroBatch(is_first=True, is_last=True, outputs_in_transfer=0)

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return the curve of a unit: one without new gradients if hooks move them to buckets."""
        return unit.later_curve if self.moves_gradients else super().curve(unit, first)

    def frees_first_gradients(self, pair_before: bool) -> bool:
        """The engine takes the sum."""
        return True

    def before_inputs(self) -> None:
        """ZeRO-3 gathers parameters."""
        self.recorder.hold("communication_buffers", self.buffers.gathered_in_forward)

    def before_loss(self, *, after_model: bool) -> None:
        """Replace ZeRO-3's gathered parameters of the forward by those of the last unit."""
        self.recorder.hold(
            "communication_buffers", NOTHING if self.buffers.releases_head else self.buffers.gathered_in_head
        )
        self.recorder.release("communication_buffers", self.buffers.gathered_in_forward)

    def begin_backward(self, micro_batch: MicroBatch, *, all_forwards_first: bool) -> None:
        """Remember which micro-batch it is, which decides what is reduced."""
        self._micro_batch = micro_batch

    def before_backward(self, index: int, curve: NamedCurve) -> None:
        """Before the backward of the head and of the first unit, replace ZeRO-3's gathered parameters by those of that
        backward.
        """
        if self.buffers.releases_head and self.units[index].kind == "head":
            self.recorder.hold("communication_buffers", self.buffers.gathered_in_head)
        if index == 0 and self.pair != FIRST_OF_PAIR:
            self.recorder.hold("communication_buffers", self.buffers.gathered_at_end)
            self.recorder.release("communication_buffers", self.buffers.gathered_in_backward)

    def unit_gradients(self, index: int, curve: NamedCurve) -> Amount:
        """Run the hooks on the gradients of the unit at ``index``, and return these gradients.

        The hooks are AccumulateGrad's: none runs in the first pass of a pair.
        """
        if self.pair != FIRST_OF_PAIR:
            first, last, _ = self._micro_batch
            self._reduce_in_hooks(self.units[index].kind, curve, self.names[index], first, last)
        return super().unit_gradients(index, curve)

    def _reduce_in_hooks(self, kind: str, curve: NamedCurve, name: str, first: bool, last: bool) -> None:
        """Put the gradients of one unit into buckets and reduce full buckets, as ZeRO-1 and ZeRO-2 do in hooks.

        The buckets are allocated at the head, whose gradients come first, and the rank's partition with the first
        reduction. ZeRO-2 reduces in every micro-batch and adds to its partition; ZeRO-1 reduces in the last one.
        ``curve.grad_hook_peak`` is the unit's peak when a gradient arrives. ``curve.later_grad_hook_peak`` leaves out
        the first gradient of the backward, for which no reduction is pending.
        """
        recorder, b = self.recorder, self.buffers
        reduces = not b.reduces_after_backward and (last or self.stage >= 2)
        if kind == "head":
            if not self._buckets:
                recorder.hold("communication_buffers", b.gradient_buckets)
                self._buckets = b.gradient_buckets
            self._replace_temporaries(b.unbucketed_gradients if reduces else NOTHING)
            if curve.grad_hook_peak is not None:
                recorder.high("backward", curve.grad_hook_peak, name)
        reducing_peak = curve.later_grad_hook_peak if kind == "head" else curve.grad_hook_peak
        if reducing_peak is not None:
            copies_by_kind = {"head": b.copies_in_head_hook, "embedding": b.copies_in_embedding_hook}
            copies = copies_by_kind.get(kind, b.copies_in_other_hooks) if reduces else NOTHING
            recorder.hold("communication_buffers", copies)
            recorder.high("backward", reducing_peak, name)
            recorder.release("communication_buffers", copies)
        if kind != "head":
            return
        recorder.hold("communication_buffers", b.gathered_in_backward)
        recorder.release("communication_buffers", b.gathered_in_head)
        if reduces and self._allocates_partition(first) and not b.reduces_once:
            recorder.hold("gradients", b.partition_gradients)
        if reduces:
            self._copy_for_offload()

    def end_micro_batch(self, first: bool, last: bool) -> None:
        """Reduce what is left in the buckets after the backward, and free the buffers that end with it.

        ZeRO-2 and 3 reduce in every micro-batch, stages 0 and 1 in the last one.
        """
        recorder, b = self.recorder, self.buffers
        reduces = last or self.stage >= 2
        self._replace_temporaries(b.copies_after_backward if reduces else NOTHING)
        new_partition = (
            b.partition_gradients if reduces and b.reduces_once and self._allocates_partition(first) else NOTHING
        )
        if b.adds_in_place:  # the fp32 sums are made before
            recorder.hold("gradients", new_partition)
        if last:
            recorder.hold("communication_buffers", b.flat_gradients)
        recorder.mark("backward", "reduction of the gradients")
        self._replace_temporaries(NOTHING)
        if reduces:
            recorder.hold("gradients", b.last_gradient)
            self._copy_for_offload()
            recorder.release("gradients", b.last_gradient)
        if not b.adds_in_place:
            recorder.hold("gradients", new_partition)
            recorder.mark("backward", "the rank's own gradients")
        if last:
            recorder.release("communication_buffers", b.flat_gradients)
        if self.stage == 2 and not first and self._starts_partition(first):  # the sum replaces the earlier partition
            recorder.release("gradients", b.partition_gradients)
        if self.stage == 2 or last:
            recorder.release("communication_buffers", self._buckets)
            self._buckets = NOTHING
        if last and b.whole_gradients and not self.moves_gradients:
            recorder.release("gradients", b.whole_gradients)
            if b.reduces_after_backward or not self._has_own_partition:
                recorder.hold("gradients", b.partition_gradients)
        recorder.release("communication_buffers", b.gathered_at_end)

    def _allocates_partition(self, first: bool) -> bool:
        """Return whether this micro-batch allocates a new buffer for the rank's partition of the gradients."""
        return (self.stage == 1 or self._starts_partition(first)) and self._has_own_partition

    @property
    def _has_own_partition(self) -> bool:
        """Whether the rank's partition is a buffer in addition to the gradients that autograd keeps."""
        return self.moves_gradients or self.buffers.copies_to_buffer

    def _replace_temporaries(self, size: int) -> None:
        """Replace the temporary buffers of a reduction by buffers of ``size``; NOTHING frees them."""
        self.recorder.release("communication_buffers", self._reducing)
        self.recorder.hold("communication_buffers", size)
        self._reducing = size

    def _copy_for_offload(self) -> None:
        """Count the copies of one gradient that is sent to the host; all zero without offloading."""
        self.recorder.hold("temporaries", self.buffers.offload_copies)
        self.recorder.mark("backward", "gradients on their way to the host")
        self.recorder.release("temporaries", self.buffers.offload_copies)

    def _starts_partition(self, first: bool) -> bool:
        """Whether this micro-batch fills a new partition, and does not add to that of the ``first`` one."""
        return first or not self.buffers.adds_in_place


ENGINE = Engine(
    buffers=engine_buffers,
    strategy=engine_step,
    casts_gradients_to_fp32=sums_apart,
    saves_linear_inputs=saves_inputs,
    undivided_model_bytes=kept_whole,
    gathered_model_bytes=gathered_at_once,
)


LEAST_SWAPPED = 1 << 20
"""Bytes of a tensor that goes to NVMe (swap_tensor/utils.py, ``MIN_AIO_BYTES``)."""
ALIGNMENT = 1024
"""Bytes to which DeepSpeed's handle rounds locked memory."""
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
    return bool(job.option("pin_memory", default=True))


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
    ranks, pinned = max(1, job.layout.shard_group), pins(job)
    parameter_item_bytes, master_item_bytes = DTYPE_BYTES[job.recipe.compute], _master(job)
    partition_numel = ceil_div(sum(trained_numels), ranks)
    master_bytes = gradients_bytes = block(partition_numel * master_item_bytes, pinned=pinned)
    if job.layout.zero_stage == 2 and job.gradient_accumulation_steps > 1 and master_item_bytes == DTYPE_BYTES["fp32"]:
        # each whole tensor that the partition touches has a buffer in which its micro-batches are summed
        gradients_bytes += max(
            (
                sum(block(tensor.numel * parameter_item_bytes, pinned=pinned) for tensor in touched_tensors)
                for touched_tensors in partitions(trained_numels, ranks)
            ),
            default=0,
        )
    updated_bytes = block(partition_numel * parameter_item_bytes, pinned=pinned)
    largest_gradient_bytes = block(max(trained_numels, default=0) * parameter_item_bytes, pinned=pinned)
    return {
        "master_weights": master_bytes,
        "gradients": gradients_bytes,
        "optimizer_states": _states(job, partition_numel),
        "communication_buffers": updated_bytes + largest_gradient_bytes,
    }


def _sharded_optimizer(job: TrainingJob, trained_numels: list[int]) -> dict[str, int]:
    """Return bytes by component of the optimizer that ZeRO-3 offloads to the host or to NVMe, on one rank's host.

    ``trained_numels``: elements of each trained tensor. Gradients exist in the accumulation's dtype, and once more in
    the master weights' dtype for the optimizer, sub-group by sub-group.
    """
    ranks, pinned, master_item_bytes = max(1, job.layout.shard_group), pins(job), _master(job)
    shards = [ceil_div(n, ranks) for n in trained_numels]
    partition_numel = sum(shards)
    sums_bytes = block(partition_numel * DTYPE_BYTES[accumulation_dtype(job)], pinned=pinned)
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
        "gradients": sums_bytes + sum(block(n * master_item_bytes, pinned=pinned) for n in sub_groups),
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
    trained_shards = [ceil_div(t.numel, ranks) for t in tensors if t.trained]
    frozen_shards = [ceil_div(t.numel, ranks) for t in tensors if not t.trained]
    flat_numel = sum(trained_shards)
    if job.parameter_offload == "cpu":
        frozen_bytes = sum(block(n * item_bytes, pinned=pinned) for n in frozen_shards)
        replaced_bytes = sum(block(n * item_bytes, pinned=True) for n in trained_shards) if pinned else 0
        parameter_bytes = block(flat_numel * item_bytes, pinned=True) + frozen_bytes
        return {"parameters": parameter_bytes, "fragmentation": replaced_bytes}
    buffer_count = int(str(job.option("buffer_count", PARAMETER_BUFFERS)))
    buffer_numel = int(str(job.option("buffer_size", BUFFER_ELEMENTS)))
    shard_bytes = [n * item_bytes for n in (*trained_shards, *frozen_shards)]
    unswapped_bytes = sum(block(n_bytes, pinned=pinned) for n_bytes in shard_bytes if n_bytes < LEAST_SWAPPED)
    buffers_bytes = buffer_count * _aligned(buffer_numel * item_bytes)
    if flat_numel > MOST_IN_CPU:  # swapped elements pass through a buffer as large as a sub-group
        sub_groups = _sub_groups(trained_shards, elements(job, "sub_group_size", 0))
        buffers_bytes += _aligned(max(sub_groups) * item_bytes)
    return {
        "parameters": block(min(flat_numel, MOST_IN_CPU) * item_bytes, pinned=True) + unswapped_bytes,
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
