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
from memcheck.autograd.tensor import rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.deepspeed.gathering import LEAVES, GatherLimits, most_gathered, persists
from memcheck.frameworks.deepspeed.reduction import NORM, Early, Reducing, as_they_appear, late, left_behind, scattered
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
ALL_REDUCE_ELEMENTS = 500_000_000
"""``MEMORY_OPT_ALLREDUCE_SIZE`` of runtime/engine.py: gradients that ZeRO does not touch are reduced in such pieces."""


class EngineBuffers(Record):
    """The sizes in bytes of DeepSpeed's buffers on one rank, and when it allocates them."""

    resident: int = 0
    """Buffers that exist from the engine's start."""
    persistent: int = 0
    """ZeRO-3: whole parameters below the persistence threshold; let go while the optimizer runs."""
    master: int = 0
    """fp32 training under ZeRO keeps a second copy of the partition, which the optimizer steps on."""
    gradients: int = 0
    """Bytes of gradients that stay allocated from step to step: ZeRO-3's partition, or the fp32 sums of
    BF16_Optimizer.
    """
    buckets: int = 0
    """Gradient buckets, from the first gradient of a step until all are reduced."""
    partition: int = 0
    """ZeRO-1 and 2: the rank's own gradients, from their reduction until the optimizer has taken them."""
    live_parameters: int = 0
    """ZeRO-3: gathered parameters during forward, with flat buffers in which they come."""
    live_head: int = 0
    """ZeRO-3: gathered parameters in the last unit, forward and backward, with those buffers."""
    live_backward: int = 0
    """ZeRO-3: gathered parameters in the backward after that of the last unit, with those buffers."""
    live_end: int = 0
    """ZeRO-3: gathered parameters in the first unit's backward and after it, with those buffers."""
    reduces_late: bool = False
    """ZeRO-1 without ``overlap_comm`` reduces when backward is over, the others as gradients appear."""
    copies_out: bool = True
    """The rank's own gradients are copied to a buffer; else (not ``contiguous_gradients``) they are what stays."""
    adds_in_place: bool = False
    """ZeRO-2: a later micro-batch is added to the partition as it is reduced, not from a second one."""
    step_temporaries: int = 0
    """Flat and fp32 copies of gradients while the optimizer runs."""
    waiting: int = 0
    """Gradients that wait in no bucket while backward runs."""
    reducing_head: int = 0
    """Copies of a bucket while it is reduced in a hook of the head."""
    reducing_last: int = 0
    """Copies of a bucket while it is reduced in a hook of the embedding."""
    reducing_within: int = 0
    """Copies of a bucket while it is reduced in any other hook."""
    reducing_after: int = 0
    """Copies of a bucket while it is reduced after the backward, with what waits."""
    reduces_once: bool = False
    """Whether all gradients are reduced at once after the backward, and none before."""
    reducing: int = 0
    """Copies that offloading makes of one tensor's gradient on the GPU, once it is reduced."""
    moving: int = 0
    """That gradient, where the last of a micro-batch, the embedding's, is all that is left of it."""
    all_reduce: int = 0
    """Without ZeRO: the flat copy of gradients that is all-reduced after backward."""
    whole_gradients: int = 0
    """ZeRO-1: the whole model's gradients, which are freed once they are reduced. Else they stay for the optimizer."""

    @property
    def other_streams(self) -> int:
        """The most bytes that the engine allocates on CUDA streams of its own.

        These are for gathers (partitioned_param_coordinator.py, ``__allgather_stream``) and for reductions (stage3.py,
        ``reduce_and_partition_stream``).
        """
        copies = self.reducing_head, self.reducing_within, self.reducing_last, self.reducing_after
        return max(self.live_parameters, self.live_head, self.live_backward) + max(copies) + self.reducing


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
    """Whether ZeRO-1 has an fp32 sum of each parameter's gradients in their place (``use_grad_accum_attribute``)."""
    wider = accumulation_dtype(job) == "fp32" and job.recipe.compute != "fp32"
    return job.layout.zero_stage == 1 and wider and not sums_in_fp32(job)


def engine_buffers(
    job: TrainingJob, units: Sequence[Sequence[LocalTensor]], *, recomputes: bool | None = None
) -> EngineBuffers:
    """Return the buffers of DeepSpeed on one rank.

    ``units``: the parameters of this rank before ZeRO divides them, unit by unit in the model's order. ``recomputes``:
    autograd saves nothing within a layer. None: sizes of gathered parameters are left out.
    """
    stage, hidden = job.layout.zero_stage, job.architecture.hidden_size
    sizes_of = {id(unit): [(t.numel, t.trained) for t in unit] for unit in {id(unit): unit for unit in units}.values()}
    every = [size for unit in units for size in sizes_of[id(unit)]]  # layers that are alike share their tensors
    trained = [n for n, trains in every if trains]
    if stage == 0:
        return _replicated(job, trained)
    if stage == 3:
        found = _partitioned_parameters(job, trained, [n for n, _ in every], hidden)
        found = _reduced_later(found, units)
        return found if recomputes is None else _gathered(job, units, hidden, found, recomputes=recomputes)
    if sums_in_fp32(job):
        return _summed_apart(job, [(t.numel, len(t.shape) > 1) for unit in units for t in unit if t.trained])
    found = _reduced_later(_partitioned_gradients(job, trained, hidden), units)
    if stage == 1:
        sizes = (rounded(n * DTYPE_BYTES[accumulation_dtype(job)]) for n in trained)
        found = found._replace(whole_gradients=sum(sizes))
    return found


def _replicated(job: TrainingJob, sizes: list[int]) -> EngineBuffers:
    """Return the buffers without ZeRO. ``sizes``: elements of each trained tensor.

    FP16_Optimizer also runs for bf16. Its ``step`` makes fp32 copies of the gradients, then one flat copy of those.
    """
    item, copies, trained = DTYPE_BYTES[job.recipe.gradients], 0, sum(sizes)
    if job.recipe.compute != "fp32":
        copies = 2 if job.optimizer.implementation == "fused" else 1  # unfused: no flat copy
    ranks = job.layout.data * job.layout.context
    count, wire = min(ALL_REDUCE_ELEMENTS, trained) if ranks > 1 else 0, communication_dtype(job)
    flat = rounded(count * item) + (rounded(count * DTYPE_BYTES[wire]) if wire != job.recipe.gradients else 0)
    return EngineBuffers(step_temporaries=copies * rounded(trained * 4), all_reduce=flat)


def _summed_apart(job: TrainingJob, trained: list[tuple[int, bool]]) -> EngineBuffers:
    """Return the buffers of BF16_Optimizer, which adds each gradient, cast to fp32, to a flat tensor of sums.

    Source: _update_hp_grad. ``trained``: elements, and whether the tensor is a matrix. The Trainer makes two groups of
    parameters, of which only matrices decay. The sums of both are copied into one tensor to be reduced, unless the
    first is as large as a bucket (allreduce_no_retain, runtime/engine.py). Then they are cast (allreduce_bucket).
    """
    wire, total = DTYPE_BYTES[communication_dtype(job)], sum(n for n, _ in trained)
    matrices = sum(n for n, decays in trained if decays)
    joined = 0 < matrices < total and matrices <= ALL_REDUCE_ELEMENTS
    sent = total if joined else max(matrices, total - matrices)
    reduced = rounded(4 * total * joined) + rounded(sent * wire if wire < 4 else 0)
    largest = max((n for n, _ in trained), default=0)
    return EngineBuffers(gradients=rounded(total * 4), all_reduce=max(rounded(largest * 4), reduced), reduces_late=True)


def _partitioned_gradients(job: TrainingJob, trained: list[int], hidden: int) -> EngineBuffers:
    """Return the buffers of ZeRO-1 and ZeRO-2. ``trained``: elements of each trained tensor in the model's order."""
    item, summed = DTYPE_BYTES[job.recipe.compute], DTYPE_BYTES[accumulation_dtype(job)]
    ways, stage = max(1, job.layout.shard_group), job.layout.zero_stage
    partition = -(-sum(trained) // ways)
    how = _reducing(job, ways, elements(job, "reduce_bucket_size", hidden))
    ordered = _round_robin(trained, ways) if how.shuffled else trained
    bucket = rounded(how.limit * DTYPE_BYTES[how.dtype]) if how.contiguous else 0
    bucket *= 2 if how.overlaps else 1
    own = rounded((partition if how.sums else fullest_partition(ordered, ways)) * summed)
    offloaded = job.optimizer.offload != "none"
    found = EngineBuffers(
        buckets=bucket,
        reduces_late=stage == 1 and not how.overlaps,
        copies_out=how.contiguous,
        adds_in_place=how.sums,
        partition=0 if offloaded and not how.sums else own,
    )
    if found.reduces_late:
        found = found._replace(reducing_after=late(trained, how, found.partition))
    else:
        moving = stage == 2 or (job.gradient_accumulation_steps == 1 and how.contiguous)
        early = as_they_appear(trained[::-1], how, moving=moving)
        if how.sums and not how.contiguous:  # the rank's own gradients stay allocated next to the sums
            kept = found.partition if stage == 1 else rounded(fullest_partition(ordered, ways) * item)
            early = early._replace(waiting=early.waiting + kept, after_backward=early.after_backward + kept)
        found = _reduced_early(found, early)
    # of each tensor's part of the partition a norm is taken in fp64 (get_grad_norm_direct)
    norm = 0
    for mine in partitions(ordered, ways):
        left = left_behind(trained, [n for n, _ in mine], how, bucket) if sums_apart(job) and not offloaded else 0
        norm = max(norm, left + rounded(NORM * max(part for _, part in mine)))
    if offloaded:
        # gradients go to the host one by one, through temp_grad_buffer_for_gpu_offload (set_norm_for_param_grad_in_gpu)
        whole = rounded(max(trained, default=0) * item)
        return found._replace(resident=whole, reducing=norm, moving=0 if found.reduces_late else whole)
    copies = 0 if how.sums else _copies_of(partition, summed)
    return found._replace(master=_second_copy(job, partition), step_temporaries=max(norm, copies))


def _reducing(job: TrainingJob, ways: int, limit: int) -> Reducing:
    """Return how the engine reduces gradients. ``ways``: ranks that share the optimizer; ``limit``: bucket elements.

    ZeRO-1 puts accumulated gradients into its buckets, in their dtype (_gradient_reduction_buffer_dtype).
    """
    summed, stage, offloaded = accumulation_dtype(job), job.layout.zero_stage, job.optimizer.offload != "none"
    return Reducing(
        ways=ways,
        limit=limit,
        dtype=summed if stage == 1 else job.recipe.compute,
        wire=communication_dtype(job),
        sums=summed == "fp32" and job.recipe.compute != "fp32",
        contiguous=bool(job.option("contiguous_gradients", True)) or (offloaded and stage < 3),
        scatters=bool(job.option("reduce_scatter", True)),
        joins=bool(job.option("use_multi_rank_bucket_allreduce", True)),
        shuffled=bool(job.option("round_robin_gradients", False)),
        offloads=offloaded,
        frees=stage == 2,
        overlaps=bool(job.option("overlap_comm", False)),
    )


def _reduced_early(buffers: EngineBuffers, early: Early) -> EngineBuffers:
    """The buffers with those of gradients that are reduced during backward, as :class:`Early` has them."""
    return buffers._replace(
        waiting=early.waiting,
        reducing_head=early.first,
        reducing_last=early.last,
        reducing_within=early.within,
        reducing_after=early.after_backward,
        reduces_once=early.once,
    )


def _reduced_later(buffers: EngineBuffers, units: Sequence[Sequence[LocalTensor]]) -> EngineBuffers:
    """A bucket is reduced when the next gradient does not fit: one of another unit, if the last trains one tensor."""
    if sum(t.trained for t in units[-1]) > 1:
        return buffers
    return buffers._replace(reducing_within=max(buffers.reducing_within, buffers.reducing_head))


def _round_robin(trained: list[int], ways: int) -> list[int]:
    """Tensors in the order in which ``_round_robin_reorder`` lays them out."""
    return [n for first in range(min(ways, len(trained))) for n in trained[first::ways]]


def _partitioned_parameters(job: TrainingJob, trained: list[int], every: list[int], hidden: int) -> EngineBuffers:
    """Return the buffers of ZeRO-3 without gathered parameters.

    ``trained``, ``every``: elements of each trained tensor, and of each tensor, in the model's order.
    """
    item, summed = DTYPE_BYTES[job.recipe.compute], DTYPE_BYTES[accumulation_dtype(job)]
    ways = max(1, job.layout.shard_group)
    partition = -(-sum(trained) // ways)
    bucket = elements(job, "reduce_bucket_size", hidden)
    persistent = [n for n, stays in zip(every, persists(every, *_persisting(job, hidden)), strict=True) if stays]
    # a step gathers them again; one by one also where a single rank has them (_allgather_params_sequential)
    apart = len(persistent) == 1 or bool(job.option("stage3_allgather_sequential", False))
    how = _reducing(job, ways, bucket)
    found = EngineBuffers(
        resident=rounded(bucket * DTYPE_BYTES[how.wire]) if how.contiguous else 0,
        persistent=rounded(sum(persistent) * item) if apart or _copies_parameters(job) else 0,
    )
    found = _reduced_early(found, scattered(trained[::-1], how, accumulation_dtype(job)))
    shard = -(-max(trained, default=0) // ways)
    if job.optimizer.offload != "none":
        return found
    # whole tensors' shards are put together until they are that many elements (_create_fp16_sub_groups)
    group = min(elements(job, "sub_group_size", hidden) + shard, partition)
    return found._replace(
        master=_second_copy(job, partition),
        gradients=rounded(partition * summed),
        # of each tensor's shard a norm is taken in fp64 (get_grad_norm_direct)
        step_temporaries=max(rounded(NORM * shard), _copies_of(group, summed)),
    )


def _persisting(job: TrainingJob, hidden: int) -> tuple[int, int | None]:
    """Elements of a parameter that is gathered once, and of all of them; None: any number."""
    most = job.option("stage3_model_persistence_threshold", None)
    return elements(job, "stage3_param_persistence_threshold", hidden), None if most is None else int(str(most))


def _copies_parameters(job: TrainingJob) -> bool:
    """Whether a parameter in use is a copy: a single rank's own partition is what it uses (``NoGatherHandle``)."""
    return job.layout.shard_group > 1 or job.parameter_offload != "none"


def _gathered(
    job: TrainingJob, units: Sequence[Sequence[LocalTensor]], hidden: int, found: EngineBuffers, *, recomputes: bool
) -> EngineBuffers:
    """Return the buffers with the parameters that ZeRO-3 has gathered at most in each phase of a step.

    Stacked experts are multiplied as views, so that autograd keeps their gathered storage for the backward.
    """
    if not _copies_parameters(job):
        return found
    architecture = job.architecture
    sequential = bool(job.option("stage3_allgather_sequential", False))
    limits = GatherLimits(
        ways=job.layout.shard_group,
        ahead=1 if sequential else elements(job, "stage3_prefetch_bucket_size", hidden),
        live=elements(job, "stage3_max_live_parameters", hidden),
        reuse=elements(job, "stage3_max_reuse_distance", hidden),
        one_by_one=sequential or job.layout.shard_group == 1,
    )
    most = most_gathered(
        tuple([(unit, len(list(same))) for unit, same in groupby(map(tuple, units))]),
        _persisting(job, hidden),
        limits,
        leaves=isinstance(architecture, Architecture) and architecture.model_type in LEAVES,
        tied=isinstance(architecture, Architecture)
        and architecture.tie_word_embeddings
        and architecture.head
        and len(units) > 1,
        recomputes=recomputes,
        around=0 if job.method == "full" else 2,
    )
    item = DTYPE_BYTES[job.recipe.compute]
    forward, head, backward, end = (rounded(n * item) for n in most)
    return found._replace(live_parameters=forward, live_head=head, live_backward=backward, live_end=end)


def _second_copy(job: TrainingJob, partition: int) -> int:
    """Return the bytes of the second fp32 copy of the partition in fp32 training: single_partition_of_fp32_groups."""
    fp32 = job.recipe.master == "none" and job.recipe.compute == "fp32"
    return rounded(partition * 4) if fp32 else 0


def _copies_of(count: int, item: int) -> int:
    """Return the bytes of ``count`` gradients flattened in their dtype of ``item`` bytes, and of their fp32 copy."""
    return rounded(count * item) + (rounded(count * 4) if item < 4 else 0)


def communication_dtype(job: TrainingJob) -> str:
    """Dtype in which gradients are sent; fp32 where ranks share a sequence (seq_parallel_communication_data_type)."""
    if job.layout.context > 1:
        return "fp32"
    return str(job.option("communication_data_type", job.recipe.compute))


def partitions(numels: Sequence[int], ways: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return for each partition its tensors, as (elements of the whole tensor, elements within the partition).

    ``numels``: elements of each tensor; ``ways``: the number of partitions. Partitions within one tensor are equal, so
    that the first stands for all of them: a million ranks take no longer than two. Empty ones are left out.
    """
    return _partitions(tuple(numels), ways)


@lru_cache(maxsize=64)
def _partitions(numels: tuple[int, ...], ranks: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Divide gradients into ``ranks`` equal ranges of elements: for each rank, (elements of a gradient, those in its
    range).

    A gradient may lie in several ranges; its first two and its last one are listed.
    """
    range_size = max(1, -(-sum(numels) // ranks))
    gradients_of_rank: dict[int, list[tuple[int, int]]] = {}
    offset = 0
    for numel in numels:
        end = offset + numel
        first, last = offset // range_size, -(-end // range_size) - 1
        for rank in sorted({first, min(first + 1, last), last}) if numel else ():
            elements_inside = min(end, (rank + 1) * range_size) - max(offset, rank * range_size)
            gradients_of_rank.setdefault(rank, []).append((numel, elements_inside))
        offset = end
    return tuple(map(tuple, gradients_of_rank.values()))


def fullest_partition(numels: Sequence[int], ways: int) -> int:
    """Elements of the whole tensors that the fullest partition touches: ``grads_in_partition`` holds them uncut."""
    return max((sum(n for n, _ in mine) for mine in partitions(numels, ways)), default=0)


def kept_whole(job: TrainingJob, tensors: Sequence[LocalTensor]) -> int:
    """Bytes of a model other than the trained one that an engine of ZeRO-3 does not divide.

    ``job``: the one that would train it. The plan's limits hold for it, too: TRL writes others under names that
    DeepSpeed does not read (``models/utils.py``, ``prepare_deepspeed``).
    """
    return engine_buffers(job, [tensors]).persistent


def gathered_at_once(job: TrainingJob, tensors: Sequence[LocalTensor], dtype: str) -> int:
    """Bytes of such a model that are gathered: the parameter in use, and those ahead of it with their flat buffer.

    A pass without a backward uses nothing again, so that each parameter is released after its layer.
    """
    numels = [t.numel for t in tensors]
    ahead = min(sum(numels), elements(job, "stage3_prefetch_bucket_size", job.architecture.hidden_size))
    return rounded((max(numels, default=0) + 2 * ahead) * DTYPE_BYTES[dtype])
