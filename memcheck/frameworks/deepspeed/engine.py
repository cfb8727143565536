"""What the DeepSpeed engine allocates in addition to parameters, gradients and states.

Read off DeepSpeed 0.19.8 and traced with it: deepspeed/runtime/zero/config.py (defaults), fp16/fused_optimizer.py,
bf16_optimizer.py, zero/stage_1_and_2.py (``ipg_buckets``, ``grads_in_partition``), zero/stage3.py (sub-groups,
``__ipg_bucket_flat_buffer``, ``grad_partitions_flat_buffer``), zero/partitioned_param_coordinator.py (live parameters);
transformers/integrations/deepspeed.py for the ``"auto"`` values. Bucket sizes are elements, not bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.tensor import ceil_div, rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.deepspeed.gathering import (
    LEAVES,
    PEFT_WRAPPERS,
    GatherLimits,
    UnitRuns,
    most_gathered,
    most_without_backward,
    persists,
)
from memcheck.frameworks.deepspeed.reduction import (
    NORM_ITEM_BYTES,
    HookReductions,
    Reducing,
    as_they_appear,
    late,
    left_behind,
    scattered,
)
from memcheck.frameworks.registry import GatheredOfReference
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record

DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "sub_group_size": 1_000_000_000,
}
"""DeepSpeed's defaults of its size options, in elements (runtime/zero/config.py)."""
ALL_REDUCE_ELEMENTS = 500_000_000
"""``MEMORY_OPT_ALLREDUCE_SIZE`` of runtime/engine.py: gradients that ZeRO does not touch are reduced in such pieces."""


class EngineBuffers(Record):
    """The sizes in bytes of DeepSpeed's buffers on one rank, and when it allocates them."""

    from_start: int = 0
    """Buffers that exist from the engine's start."""
    persistent_params: int = 0
    """ZeRO-3: unsharded parameters below the persistence threshold; freed while the optimizer runs."""
    fp32_partition_copy: int = 0
    """fp32 training under ZeRO keeps a second copy of the partition, which the optimizer steps on."""
    persistent_gradients: int = 0
    """Bytes of gradients that stay allocated from step to step: ZeRO-3's partition, or the fp32 sums of
    BF16_Optimizer.
    """
    gradient_buckets: int = 0
    """Gradient buckets, from the first gradient of a step until all are reduced."""
    partition_gradients: int = 0
    """ZeRO-1 and 2: gradients of the rank's partition, from their reduction until the optimizer has read them."""
    gathered_in_forward: int = 0
    """ZeRO-3: gathered parameters in the forward, and the flat buffers into which they are all-gathered."""
    gathered_in_head: int = 0
    """ZeRO-3: gathered parameters in the last unit's forward and backward, and flat buffers."""
    gathered_in_backward: int = 0
    """ZeRO-3: gathered parameters in the backward of all other units, and flat buffers."""
    gathered_at_end: int = 0
    """ZeRO-3: gathered parameters in the first unit's backward and after it, and flat buffers."""
    releases_head: bool = False
    """ZeRO-3: nothing is gathered between the last unit's forward and backward, while a trainer takes the loss."""
    reduces_after_backward: bool = False
    """Gradients are reduced after the backward (ZeRO-1 without ``overlap_comm``), and not in its hooks."""
    copies_to_buffer: bool = True
    """This rank's gradients are copied to a buffer; without ``contiguous_gradients`` the gradients themselves stay."""
    adds_in_place: bool = False
    """ZeRO-2: reductions add later micro-batches to the partition in place, without a second partition."""
    step_temporaries: int = 0
    """Flat and fp32 copies of gradients while the optimizer runs."""
    unbucketed_gradients: int = 0
    """Gradients that are in no bucket and wait for their reduction while backward runs."""
    copies_in_head_hook: int = 0
    """Copies of a bucket while it is reduced in a hook of the head."""
    copies_in_embedding_hook: int = 0
    """Copies of a bucket while it is reduced in a hook of the embedding."""
    copies_in_other_hooks: int = 0
    """Copies of a bucket while it is reduced in any other hook."""
    copies_after_backward: int = 0
    """Copies of a bucket while it is reduced after the backward, and the gradients that wait."""
    reduces_once: bool = False
    """Whether all gradients are reduced at once after the backward, and none before."""
    offload_copies: int = 0
    """Copies that offloading makes of one tensor's gradient on the GPU, once it is reduced."""
    last_gradient: int = 0
    """With offloading: one tensor's gradient, when only that of the embedding, the last one, is left on the GPU."""
    flat_gradients: int = 0
    """Without ZeRO: the flat copy of gradients that is all-reduced after backward."""
    whole_gradients: int = 0
    """ZeRO-1: all gradients of the model, which are freed once they are reduced; 0: they stay for the optimizer."""

    @property
    def gathered_in_evaluation(self) -> int:
        """ZeRO-3: gathered parameters in an evaluation; the head's where others are gone when the loss is taken."""
        return self.gathered_in_head if self.releases_head else self.gathered_in_forward

    @property
    def other_streams(self) -> int:
        """The most bytes that the engine allocates on CUDA streams of its own.

        These are for gathers (partitioned_param_coordinator.py, ``__allgather_stream``) and for reductions (stage3.py,
        ``reduce_and_partition_stream``).
        """
        copies = (
            self.copies_in_head_hook,
            self.copies_in_other_hooks,
            self.copies_in_embedding_hook,
            self.copies_after_backward,
        )
        return (
            max(self.gathered_in_forward, self.gathered_in_head, self.gathered_in_backward)
            + max(copies)
            + self.offload_copies
        )


def elements(job: TrainingJob, name: str, hidden: int) -> int:
    """Return one size option of the DeepSpeed config in elements; ``auto`` becomes what transformers fills in.

    ``hidden``: the model's hidden size.

    Raises:
        UnsupportedError: transformers fills in no value for this option.
    """
    value = job.option(name, DEFAULTS[name])
    if value == "auto":
        filled = {
            "reduce_bucket_size": hidden * hidden,
            "stage3_prefetch_bucket_size": int(0.9 * hidden * hidden),
            "stage3_param_persistence_threshold": 10 * hidden,
        }
        if name not in filled:
            raise UnsupportedError(
                f"`{name}: auto`: transformers fills in no value for it (integrations/deepspeed.py)",
                f"state it; DeepSpeed's default is {DEFAULTS[name]}",
                f"/training/options/{name}",
            )
        value = filled[name]
    return int(str(value)) if not isinstance(value, (int, float)) else int(value)


def accumulation_dtype(job: TrainingJob) -> str:
    """Dtype in which gradients are summed: ``data_types.grad_accum_dtype``, or that of the parameters."""
    return str(job.option("grad_accum_dtype", job.recipe.gradients))


def sums_in_fp32(job: TrainingJob) -> bool:
    """Whether BF16_Optimizer runs: ZeRO-1 in bf16 with fp32 sums on the GPU (_do_optimizer_sanity_check, engine.py)."""
    lower = job.recipe.compute == "bf16" and accumulation_dtype(job) == "fp32"
    return job.layout.zero_stage == 1 and lower and job.optimizer.offload == "none"


def sums_apart(job: TrainingJob) -> bool:
    """Say whether ZeRO-1 sums each parameter's gradients over micro-batches in an fp32 tensor instead of ``.grad``.

    ``use_grad_accum_attribute``.
    """
    wider = accumulation_dtype(job) == "fp32" and job.recipe.compute != "fp32"
    return job.layout.zero_stage == 1 and wider and not sums_in_fp32(job)


def engine_buffers(
    job: TrainingJob, units: Sequence[Sequence[LocalTensor]], *, recomputes: bool | None = None
) -> EngineBuffers:
    """Return the buffers that DeepSpeed's engine allocates on one rank, in bytes.

    ``units``: the parameters of this rank before ZeRO divides them, unit by unit in the model's order. ``recomputes``:
    activation checkpointing, so that autograd saves nothing within a layer. If it is None, gathered parameters are left
    out.
    """
    stage, hidden = job.layout.zero_stage, job.architecture.hidden_size
    tensors = [tensor for unit in units for tensor in unit]
    trained = [tensor for tensor in tensors if tensor.trained]
    trained_numels = [tensor.numel for tensor in trained]
    if stage == 0:
        return _replicated(job, trained_numels)
    if stage == 3:
        buffers = _partitioned_parameters(job, trained_numels, [tensor.numel for tensor in tensors], hidden)
        buffers = _reduced_later(buffers, units)
        return buffers if recomputes is None else _gathered(job, units, hidden, buffers, recomputes=recomputes)
    if sums_in_fp32(job):
        return _bf16_optimizer_buffers(job, trained)
    buffers = _reduced_later(_partitioned_gradients(job, trained_numels, hidden), units)
    if stage == 1:
        gradient_bytes = (rounded(n * DTYPE_BYTES[accumulation_dtype(job)]) for n in trained_numels)
        buffers = buffers._replace(whole_gradients=sum(gradient_bytes))
    return buffers


def _replicated(job: TrainingJob, trained_numels: list[int]) -> EngineBuffers:
    """Return the buffers of DDP-like training without ZeRO. ``trained_numels``: elements of each trained tensor.

    FP16_Optimizer also runs for bf16. Its ``step`` makes fp32 copies of the gradients, and with a fused optimizer one
    flat copy of those. Gradients are reduced from a flat buffer of at most :data:`ALL_REDUCE_ELEMENTS`, which is cast
    if they are sent in another dtype. fp32 training makes no copy in the step.
    """
    gradients, sent = job.recipe.gradients, communication_dtype(job)
    trained_numel = sum(trained_numels)
    fp32_copies = 0
    if job.recipe.compute != "fp32":
        fp32_copies = 2 if job.optimizer.implementation == "fused" else 1  # FP16_UnfusedOptimizer: no flat copy
    all_reduce_bytes = 0
    if job.layout.data * job.layout.context > 1:
        flat_numel = min(ALL_REDUCE_ELEMENTS, trained_numel)
        all_reduce_bytes = rounded(flat_numel * DTYPE_BYTES[gradients])
        if sent != gradients:
            all_reduce_bytes += rounded(flat_numel * DTYPE_BYTES[sent])
    step_bytes = fp32_copies * rounded(trained_numel * DTYPE_BYTES["fp32"])
    return EngineBuffers(step_temporaries=step_bytes, flat_gradients=all_reduce_bytes)


def _bf16_optimizer_buffers(job: TrainingJob, trained: list[LocalTensor]) -> EngineBuffers:
    """Return the buffers of BF16_Optimizer, which adds each gradient, cast to fp32, to a flat tensor of sums.

    Source: _update_hp_grad. The Trainer makes two groups of parameters, of which only matrices decay. The sums of both
    are copied into one tensor to be reduced, unless the first is as large as a bucket (allreduce_no_retain,
    runtime/engine.py). Then they are cast (allreduce_bucket).
    """
    fp32_bytes, sent_bytes = DTYPE_BYTES["fp32"], DTYPE_BYTES[communication_dtype(job)]
    total_numel = sum(t.numel for t in trained)
    matrix_numel = sum(t.numel for t in trained if len(t.shape) > 1)
    other_numel = total_numel - matrix_numel
    joins_groups = matrix_numel > 0 and other_numel > 0 and matrix_numel <= ALL_REDUCE_ELEMENTS
    reduced_numel = total_numel if joins_groups else max(matrix_numel, other_numel)
    reduced_bytes = rounded(total_numel * fp32_bytes) if joins_groups else 0
    if sent_bytes < fp32_bytes:
        reduced_bytes += rounded(reduced_numel * sent_bytes)
    largest_gradient_bytes = rounded(max((t.numel for t in trained), default=0) * fp32_bytes)
    return EngineBuffers(
        persistent_gradients=rounded(total_numel * fp32_bytes),
        flat_gradients=max(largest_gradient_bytes, reduced_bytes),
        reduces_after_backward=True,
    )


def _partitioned_gradients(job: TrainingJob, trained_numels: list[int], hidden: int) -> EngineBuffers:
    """Return the buffers of ZeRO-1 and ZeRO-2 on one rank, in bytes.

    ``trained_numels``: elements of each trained tensor in the model's order. ``hidden``: the model's hidden size, by
    which ``reduce_bucket_size: auto`` is filled in.
    """
    gradient_item_bytes, sum_item_bytes = DTYPE_BYTES[job.recipe.compute], DTYPE_BYTES[accumulation_dtype(job)]
    ranks, stage = max(1, job.layout.shard_group), job.layout.zero_stage
    partition = ceil_div(sum(trained_numels), ranks)  # elements of the flat gradient that each rank owns
    reducing = _reducing(job, ranks, elements(job, "reduce_bucket_size", hidden))
    ordered_numels = _round_robin(trained_numels, ranks) if reducing.round_robin_owners else trained_numels
    bucket_bytes = (
        rounded(reducing.bucket_elements * DTYPE_BYTES[reducing.gradient_dtype]) if reducing.copies_to_buffer else 0
    )
    bucket_bytes *= 2 if reducing.overlaps_comm else 1  # one bucket is filled while the other is reduced
    kept_numel = partition if reducing.sums_slice_in_fp32 else fullest_partition(ordered_numels, ranks)
    partition_bytes = rounded(kept_numel * sum_item_bytes)
    offloaded = job.optimizer.offload != "none"
    buffers = EngineBuffers(
        gradient_buckets=bucket_bytes,
        reduces_after_backward=stage == 1 and not reducing.overlaps_comm,
        copies_to_buffer=reducing.copies_to_buffer,
        adds_in_place=reducing.sums_slice_in_fp32,
        partition_gradients=0 if offloaded and not reducing.sums_slice_in_fp32 else partition_bytes,
    )
    if buffers.reduces_after_backward:
        buffers = buffers._replace(copies_after_backward=late(trained_numels, reducing, buffers.partition_gradients))
    else:
        own_bytes = buffers.partition_gradients
        if stage == 2:
            own_bytes = rounded(fullest_partition(ordered_numels, ranks) * gradient_item_bytes)
        buffers = _reduced_early(buffers, _reductions_in_hooks(job, trained_numels, reducing, own_bytes))
    norm_bytes = _norm_bytes(job, trained_numels, ordered_numels, reducing, bucket_bytes)
    if offloaded:
        # gradients go to the host one by one, through temp_grad_buffer_for_gpu_offload (set_norm_for_param_grad_in_gpu)
        largest_bytes = rounded(max(trained_numels, default=0) * gradient_item_bytes)
        return buffers._replace(
            from_start=largest_bytes,
            offload_copies=norm_bytes,
            last_gradient=0 if buffers.reduces_after_backward else largest_bytes,
        )
    step_copies = 0 if reducing.sums_slice_in_fp32 else _copies_of(partition, sum_item_bytes)
    return buffers._replace(
        fp32_partition_copy=_second_copy(job, partition), step_temporaries=max(norm_bytes, step_copies)
    )


def _reductions_in_hooks(
    job: TrainingJob, trained_numels: list[int], reducing: Reducing, own_bytes: int
) -> HookReductions:
    """Return the bytes of reductions that run in backward hooks.

    ``own_bytes``: of the rank's own gradients, which stay allocated next to their fp32 sums if no bucket takes them.
    """
    frees_gradients = job.layout.zero_stage == 2 or (job.gradient_accumulation_steps == 1 and reducing.copies_to_buffer)
    early = as_they_appear(trained_numels[::-1], reducing, frees_gradients=frees_gradients)
    if reducing.copies_to_buffer or not reducing.sums_slice_in_fp32:
        return early
    return early._replace(
        unbucketed_gradients=early.unbucketed_gradients + own_bytes,
        copies_after_backward=early.copies_after_backward + own_bytes,
    )


def _norm_bytes(
    job: TrainingJob, trained_numels: list[int], ordered_numels: list[int], reducing: Reducing, bucket_bytes: int
) -> int:
    """Return the most bytes that a rank takes for the gradients' norm: one tensor's part of its partition in fp64.

    Gradients that ZeRO-1 sums apart are alive until then. ``ordered_numels``: elements of the tensors in the order in
    which the ranks divide them. ``bucket_bytes``: of all buckets. Source: get_grad_norm_direct.
    """
    most_bytes = 0
    for own_tensors in partitions(ordered_numels, reducing.ranks):
        unfreed_bytes = 0
        if sums_apart(job) and not reducing.offloads_gradients:
            unfreed_bytes = left_behind(
                trained_numels, [tensor.numel for tensor in own_tensors], reducing, bucket_bytes
            )
        largest_shard = max(tensor.numel_inside for tensor in own_tensors)
        most_bytes = max(most_bytes, unfreed_bytes + rounded(NORM_ITEM_BYTES * largest_shard))
    return most_bytes


def _reducing(job: TrainingJob, ranks: int, bucket_numel: int) -> Reducing:
    """Return how the engine reduces gradients. ``ranks``: those that share the optimizer's states.

    ZeRO-1 puts accumulated gradients into its buckets, in their dtype (_gradient_reduction_buffer_dtype).
    ``bucket_numel``: elements of a bucket.
    """
    summed, stage, offloaded = accumulation_dtype(job), job.layout.zero_stage, job.optimizer.offload != "none"
    return Reducing(
        ranks=ranks,
        bucket_elements=bucket_numel,
        gradient_dtype=summed if stage == 1 else job.recipe.compute,
        communication_dtype=communication_dtype(job),
        sums_slice_in_fp32=summed == "fp32" and job.recipe.compute != "fp32",
        copies_to_buffer=bool(job.option("contiguous_gradients", default=True)) or (offloaded and stage < 3),
        sends_slices_apart=bool(job.option("reduce_scatter", default=True)),
        sends_slices_together=bool(job.option("use_multi_rank_bucket_allreduce", default=True)),
        round_robin_owners=bool(job.option("round_robin_gradients", default=False)),
        offloads_gradients=offloaded,
        frees_others_gradients=stage == 2,
        overlaps_comm=bool(job.option("overlap_comm", default=False)),
    )


def _reduced_early(buffers: EngineBuffers, early: HookReductions) -> EngineBuffers:
    """Return the buffers with the bytes of gradients that backward hooks reduce, from ``early``."""
    return buffers._replace(
        unbucketed_gradients=early.unbucketed_gradients,
        copies_in_head_hook=early.head_copies,
        copies_in_embedding_hook=early.embedding_copies,
        copies_in_other_hooks=early.other_copies,
        copies_after_backward=early.copies_after_backward,
        reduces_once=early.reduces_once,
    )


def _reduced_later(buffers: EngineBuffers, units: Sequence[Sequence[LocalTensor]]) -> EngineBuffers:
    """Return the buffers where the head trains one tensor, whose bucket is reduced in a hook of the unit before it.

    ``units``: the parameters of each unit in forward order. A bucket is reduced when the next gradient does not fit.
    That gradient belongs to another unit if the last unit, the first in backward, trains one tensor alone.
    """
    if sum(t.trained for t in units[-1]) > 1:
        return buffers
    return buffers._replace(copies_in_other_hooks=max(buffers.copies_in_other_hooks, buffers.copies_in_head_hook))


def _round_robin(numels: list[int], ranks: int) -> list[int]:
    """Return the tensors' elements in the order of ``_round_robin_reorder``.

    Rank after rank, each takes every ``ranks``-th of the tensors, whose elements are ``numels``.
    """
    return [n for rank in range(min(ranks, len(numels))) for n in numels[rank::ranks]]


def _partitioned_parameters(
    job: TrainingJob, trained_numels: list[int], numels: list[int], hidden: int
) -> EngineBuffers:
    """Return the buffers of ZeRO-3 on one rank in bytes, without gathered parameters that are released again.

    ``trained_numels``, ``numels``: elements of each trained tensor, and of each tensor, in the model's order.
    ``hidden``: the model's hidden size.
    """
    parameter_item_bytes, sum_item_bytes = DTYPE_BYTES[job.recipe.compute], DTYPE_BYTES[accumulation_dtype(job)]
    ranks = max(1, job.layout.shard_group)
    partition_numel = ceil_div(sum(trained_numels), ranks)
    bucket_numel = elements(job, "reduce_bucket_size", hidden)
    persistent = [n for n, stays in zip(numels, persists(numels, *_persisting(job, hidden)), strict=True) if stays]
    # each step gathers persistent parameters again. A single rank uses its own partition, without a copy,
    # unless parameters are gathered one by one (_allgather_params_sequential)
    allocates_persistent = len(persistent) == 1 or bool(job.option("stage3_allgather_sequential", default=False))
    reducing = _reducing(job, ranks, bucket_numel)
    buffers = EngineBuffers()
    if reducing.copies_to_buffer:
        buffers = buffers._replace(from_start=rounded(bucket_numel * DTYPE_BYTES[reducing.communication_dtype]))
    if allocates_persistent or _copies_parameters(job):
        buffers = buffers._replace(persistent_params=rounded(sum(persistent) * parameter_item_bytes))
    buffers = _reduced_early(buffers, scattered(trained_numels[::-1], reducing, accumulation_dtype(job)))
    largest_shard = ceil_div(max(trained_numels, default=0), ranks)
    if job.optimizer.offload != "none":
        return buffers
    # whole shards are joined until a sub-group has sub_group_size elements (_create_fp16_sub_groups)
    sub_group_numel = min(elements(job, "sub_group_size", hidden) + largest_shard, partition_numel)
    return buffers._replace(
        fp32_partition_copy=_second_copy(job, partition_numel),
        persistent_gradients=rounded(partition_numel * sum_item_bytes),
        # the norm casts one tensor's shard at a time to fp64 (get_grad_norm_direct)
        step_temporaries=max(rounded(NORM_ITEM_BYTES * largest_shard), _copies_of(sub_group_numel, sum_item_bytes)),
    )


def _persisting(job: TrainingJob, hidden: int) -> tuple[int, int | None]:
    """Return up to how many elements a parameter is never released, and how many such elements there may be in total.

    None for the total: no limit (``stage3_model_persistence_threshold``). ``hidden``: the model's hidden size.
    """
    total = job.option("stage3_model_persistence_threshold", None)
    return elements(job, "stage3_param_persistence_threshold", hidden), None if total is None else int(str(total))


def _copies_parameters(job: TrainingJob) -> bool:
    """Whether a parameter in use is a copy: a single rank's own partition is what it uses (``NoGatherHandle``)."""
    return job.layout.shard_group > 1 or job.parameter_offload != "none"


def _runs(units: Sequence[Sequence[LocalTensor]]) -> UnitRuns:
    """Return the parameters of equal consecutive units, and how many there are."""
    return tuple([(tensors, len(list(same))) for tensors, same in groupby(map(tuple, units))])


def _kinds(job: TrainingJob, units: Sequence[Sequence[LocalTensor]]) -> dict[str, bool]:
    """Say of a model whether its sparse blocks are ``leaves`` of ZeRO-3, and whether its head is ``tied``."""
    architecture = job.architecture
    if not isinstance(architecture, Architecture):
        return {"leaves": False, "tied": False}
    tied = architecture.tie_word_embeddings and architecture.head and len(units) > 1
    return {"leaves": architecture.model_type in LEAVES, "tied": tied}


def _limits(job: TrainingJob, hidden: int) -> GatherLimits:
    """Return the limits of what ZeRO-3 gathers, in elements. ``hidden``: the model's hidden size."""
    sequential = bool(job.option("stage3_allgather_sequential", default=False))
    return GatherLimits(
        ranks=job.layout.shard_group,
        prefetch_elements=1 if sequential else elements(job, "stage3_prefetch_bucket_size", hidden),
        max_live_elements=elements(job, "stage3_max_live_parameters", hidden),
        max_reuse_elements=elements(job, "stage3_max_reuse_distance", hidden),
        gathers_one_by_one=sequential or job.layout.shard_group == 1,
    )


def _gathered(
    job: TrainingJob, units: Sequence[Sequence[LocalTensor]], hidden: int, buffers: EngineBuffers, *, recomputes: bool
) -> EngineBuffers:
    """Add to the buffers the most bytes of parameters that ZeRO-3 has gathered at once in each phase of a step.

    ``units``: the parameters of each unit in forward order. ``hidden``: the model's hidden size. ``recomputes``: layers
    are checkpointed. Without that, autograd keeps the gathered storage of stacked experts, which are multiplied as
    views.

    The engine takes every forward for the start of a step (``reset_step``) and expects the modules of the last one. The
    backward behind a second forward is none of them: it forgets the order (partitioned_param_coordinator.py,
    ``trace_prologue``), prefetches nothing and releases each module at once.
    """
    if not _copies_parameters(job):
        return buffers
    limits, loses_order = _limits(job, hidden), job.objective.repeats_forward
    model, kinds = (_runs(units), _persisting(job, hidden)), _kinds(job, units)
    # its forwards alone are in one order, so that the second of them prefetches
    second_forward = max(most_without_backward(*model, limits, **kinds)) if loses_order else 0
    peaks = most_gathered(
        *model,
        limits._replace(prefetch_elements=0, max_reuse_elements=0) if loses_order else limits,
        **kinds,
        recomputes=recomputes,
        wrappers=0 if job.method == "full" else PEFT_WRAPPERS,
    )
    item_bytes = DTYPE_BYTES[job.recipe.compute]
    forward, head, backward, end = (rounded(n * item_bytes) for n in peaks)
    forward = max(forward, rounded(second_forward * item_bytes))
    in_trainer = job.objective.loss_after_model and not job.objective.loss_from_hidden_states
    buffers = buffers._replace(
        gathered_in_forward=forward, gathered_in_head=head, gathered_in_backward=backward, gathered_at_end=end
    )
    return buffers._replace(releases_head=loses_order and in_trainer)


def _second_copy(job: TrainingJob, partition: int) -> int:
    """Return the bytes of the second fp32 copy of the partition in fp32 training: single_partition_of_fp32_groups."""
    fp32 = job.recipe.master == "none" and job.recipe.compute == "fp32"
    return rounded(partition * 4) if fp32 else 0


def _copies_of(numel: int, item_bytes: int) -> int:
    """Return the bytes of ``numel`` gradients flattened in their dtype of ``item_bytes``, and of their fp32 copy."""
    return rounded(numel * item_bytes) + (rounded(numel * 4) if item_bytes < 4 else 0)


def communication_dtype(job: TrainingJob) -> str:
    """Return the dtype in which gradients are sent; fp32 where ranks share a sequence
    (seq_parallel_communication_data_type).
    """
    if job.layout.context > 1:
        return "fp32"
    return str(job.option("communication_data_type", job.recipe.compute))


class PartitionedTensor(Record):
    """One tensor that lies in a rank's partition of the flat gradient, or reaches into it."""

    numel: int
    """Elements of the whole tensor."""
    numel_inside: int
    """Elements within the partition."""


def partitions(numels: Sequence[int], ranks: int) -> tuple[tuple[PartitionedTensor, ...], ...]:
    """Return for each rank's partition the tensors in it.

    ``numels``: elements of each tensor; ``ranks``: the number of partitions. Of the partitions that one tensor spans,
    the first, the second and the last are listed. Those between equal the second: a million ranks take no longer than
    three.
    """
    return _partitions(tuple(numels), ranks)


@lru_cache(maxsize=64)
def _partitions(numels: tuple[int, ...], ranks: int) -> tuple[tuple[PartitionedTensor, ...], ...]:
    """Divide gradients into ``ranks`` equal ranges of elements, and list the gradients of each range.

    A gradient may lie in several ranges; its first two and its last one are listed.
    """
    range_size = max(1, ceil_div(sum(numels), ranks))
    gradients_of_rank: dict[int, list[PartitionedTensor]] = {}
    offset = 0
    for numel in numels:
        end = offset + numel
        first, last = offset // range_size, ceil_div(end, range_size) - 1
        ranks_inside = {first, min(first + 1, last), last} if numel else set[int]()
        for rank in sorted(ranks_inside):
            range_start = rank * range_size
            elements_inside = min(end, range_start + range_size) - max(offset, range_start)
            gradients_of_rank.setdefault(rank, []).append(PartitionedTensor(numel, elements_inside))
        offset = end
    return tuple(map(tuple, gradients_of_rank.values()))


def fullest_partition(numels: Sequence[int], ranks: int) -> int:
    """Return the most elements of whole tensors that one rank's partition touches.

    ZeRO-2 keeps these gradients in whole tensors (``grads_in_partition``). ``numels``: elements of each tensor.
    ``ranks``: number of partitions.
    """
    touched = [sum(tensor.numel for tensor in tensors) for tensors in partitions(numels, ranks)]
    return max(touched, default=0)


def kept_whole(job: TrainingJob, tensors: Sequence[LocalTensor]) -> int:
    """Return the bytes of a reference model's parameters that ZeRO-3 does not divide, because they persist.

    ``job``: the one that would train the reference model. The plan's limits apply to it as well: TRL writes others
    under names that DeepSpeed does not read (``models/utils.py``, ``prepare_deepspeed``). Where they say ``auto``,
    DeepSpeed takes its own defaults: transformers fills in values later, for the model that is trained.
    """
    return engine_buffers(_without_auto(job), [tensors]).persistent_params


def _without_auto(job: TrainingJob) -> TrainingJob:
    """Return the job without options of ``auto``, which DeepSpeed drops (``runtime/config_utils.py``)."""
    return job._replace(options=tuple((name, value) for name, value in job.options if value != "auto"))


def gathered_at_once(job: TrainingJob, units: Sequence[Sequence[LocalTensor]], dtype: str) -> GatheredOfReference:
    """Return the bytes of a reference model that are gathered at once in its forward.

    ``job``: see :func:`kept_whole`. ``units``: its parameters in forward order. ``dtype``: theirs.
    """
    job, hidden = _without_auto(job), job.architecture.hidden_size
    most = most_without_backward(_runs(units), _persisting(job, hidden), _limits(job, hidden), **_kinds(job, units))
    return GatheredOfReference(*(rounded(n * DTYPE_BYTES[dtype]) for n in most))
