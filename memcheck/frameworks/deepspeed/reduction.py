"""What ZeRO-1 and 2 allocate while they reduce gradients, bucket by bucket.

Read off DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: ``reduce_independent_p_g_buckets_and_remove_grads`` (when a
bucket is full), ``average_tensor`` (its slices by owner), ``allreduce_bucket`` (their flat copy, and its cast),
``_add_to_grad_partition_buffer`` (fp32 sums), ``_allreduce_noncontiguous_bucket_preserving_fp32``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from memcheck.autograd.tensor import ceil_div, rounded
from memcheck.job.types import DTYPE_BYTES
from memcheck.record import Record

NORM_ITEM_BYTES = 8
"""Bytes of an element in which norms of offloaded gradients are computed: fp64 (zero/utils.py, ``get_norm_dtype``)."""
NORM_PIECE_ELEMENTS = 250_000_000
"""How many elements ZeRO-3 casts to fp64 at once for a norm (``_constant_buffered_norm2``)."""


class Reducing(Record):
    """How DeepSpeed's ZeRO reduces gradients on one rank, by its config. Sizes are elements, not bytes.

    Gradients are copied to a bucket, or wait outside it. A full bucket is reduced, and each rank keeps its own slice.
    """

    ranks: int
    """Number of ranks over which optimizer states are divided. Each owns a slice of the gradients."""
    bucket_elements: int
    """Elements of a bucket (``reduce_bucket_size``)."""
    gradient_dtype: str
    """Dtype of gradients before the reduction."""
    communication_dtype: str
    """Dtype in which a bucket is sent."""
    sums_slice_in_fp32: bool
    """The slice that this rank owns is summed in fp32 (``_use_compact_grad_partition_buffer``)."""
    copies_to_buffer: bool
    """Gradients are copied to a buffer as large as a bucket (``contiguous_gradients``)."""
    sends_slices_apart: bool
    """The slice of each owner is sent separately (``reduce_scatter``); otherwise the bucket is sent at once."""
    sends_slices_together: bool
    """The slices of all owners are sent in one all-reduce (``use_multi_rank_bucket_allreduce``)."""
    round_robin_owners: bool
    """Consecutive tensors have different owners (``round_robin_gradients``)."""
    offloads_gradients: bool
    """Gradients are copied to the host. One that is in no bucket is cloned (``_offload_gradient_safety_enabled``), and
    the norm of each is computed in fp64."""
    frees_others_gradients: bool
    """Gradients that other ranks own are freed once they are reduced: in ZeRO-2."""
    overlaps_comm: bool
    """``overlap_comm``: gradients in no buffer live until the next reduction (``previous_reduced_grads``)."""


def buckets(numels: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Yield the tensors of each bucket as indices [from, to): a bucket is full when the next tensor does not fit.

    ``numels``: elements of each tensor; ``limit``: elements of a bucket.
    """
    first = filled = 0
    for number, numel in enumerate(numels):
        if number > first and filled + numel > limit:
            yield first, number
            first, filled = number, 0
        filled += numel
    if numels:
        yield first, len(numels)


def late(numels: Sequence[int], reducing: Reducing, partition: int) -> int:
    """Return the peak bytes of a reduction after the backward, in addition to the gradients of the whole model.

    ``numels``: elements of each tensor in the model's order. ``partition``: bytes of the rank's own gradients, which
    exist from the first bucket on. Gradients are freed once they are copied to a bucket.
    """
    highest = bucketed = partition_alive = 0
    for bucket in _reductions(numels, reducing):
        if not bucket.unbucketed_bytes:
            bucketed += sum(
                rounded(n * DTYPE_BYTES[reducing.gradient_dtype]) for n in numels[bucket.first : bucket.end]
            )
        partition_alive = partition if reducing.sums_slice_in_fp32 else partition_alive
        highest = max(highest, partition_alive + bucket.copies_bytes - bucketed)
        partition_alive = partition if reducing.copies_to_buffer else partition_alive
        highest = max(highest, partition_alive - bucketed)
    return highest


class HookReductions(Record):
    """Bytes that ZeRO's reductions of gradients allocate in backward hooks, in addition to the buckets.

    The reductions of :func:`late` run after the backward instead. Copies are the flat copy, cast and partition that one
    reduction makes (:func:`_copies`).
    """

    unbucketed_gradients: int = 0
    """Bytes of gradients that are in no bucket and wait for their reduction while backward runs."""
    head_copies: int = 0
    """Bytes of the copies of the first bucket while it is reduced, if it has only one tensor (the head's); else 0."""
    embedding_copies: int = 0
    """Bytes of the copies in the hook of the last gradient (the embedding's), beyond ``unbucketed_gradients``."""
    other_copies: int = 0
    """Most bytes of copies in any other hook, beyond ``unbucketed_gradients``."""
    copies_after_backward: int = 0
    """Bytes of the copies after the backward, with the gradients that still wait for their reduction."""
    reduces_once: bool = False
    """Whether all gradients are reduced at once after the backward, and none before."""


def as_they_appear(numels: Sequence[int], reducing: Reducing, *, frees_gradients: bool) -> HookReductions:
    """Return the bytes that ZeRO-1 and ZeRO-2 allocate where backward hooks reduce gradients, next to the buckets.

    ``numels``: elements of each tensor in the order of the hooks. ``frees_gradients``: only the reduction keeps
    gradients that are in no bucket; otherwise autograd keeps them as well, and they are counted there.
    """
    buckets = list(_reductions(numels, reducing))
    peaks = _HookPeaks(len(numels))
    kept = previous = 0
    for bucket in buckets:
        new = bucket.unbucketed_bytes if frees_gradients else 0
        if reducing.copies_to_buffer or not reducing.overlaps_comm:
            previous = 0  # the previous reduction is over before this one starts
        not_pending = (
            peaks.bytes_that_do_not_wait(bucket.first, bucket.end, numels, reducing.gradient_dtype) if new else 0
        )
        peaks.add(
            bucket.first,
            bucket.end,
            pending=kept + previous + new - not_pending,
            reducing=kept + max(previous + new, new + bucket.copies_bytes),
            copies=bucket.copies_bytes,
        )
        previous = new
        if not reducing.frees_others_gradients:
            kept += new
    return peaks.early()._replace(reduces_once=len(buckets) < 2)


class _HookPeaks:
    """The highest bytes so far of reductions that run in the hooks of one backward, bucket by bucket.

    A bucket is reduced in the hook of the gradient after it, and the last bucket after the backward.
    """

    def __init__(self, n_tensors: int) -> None:
        self._n_tensors = n_tensors
        self._pending = self._at_first_hook = self._within = self._at_last_hook = self._after_backward = 0

    def bytes_that_do_not_wait(self, first: int, end: int, numels: Sequence[int], dtype: str) -> int:
        """Return the bytes of a bucket's last gradient, if it is in no bucket and is reduced without waiting.

        The last tensor's hook runs after the backward, and a bucket's only tensor is not pending before its own hook.
        ``first``, ``end``: the bucket's tensors, as indices of ``numels``.
        """
        if end < len(numels) and end - first > 1:
            return 0
        return rounded(numels[end - 1] * DTYPE_BYTES[dtype])

    def add(self, first: int, end: int, *, pending: int, reducing: int, copies: int) -> None:
        """Add the reduction of the tensors [first, end).

        ``pending``: bytes of gradients that wait in no bucket. ``reducing``: bytes that are alive while the reduction
        runs, gradients in no bucket included. ``copies``: of these, what the reduction itself allocates.
        """
        self._pending = max(self._pending, pending)
        self._at_last_hook, self._after_backward = self._after_backward, reducing
        if end == 1:
            self._at_first_hook = copies
        elif end < self._n_tensors:
            self._within = max(self._within, reducing)

    def early(self) -> HookReductions:
        """Return the bytes in each kind of hook, without those that wait during the whole backward."""
        is_alone = self._n_tensors < 2  # a single tensor is reduced after its backward
        return HookReductions(
            unbucketed_gradients=self._pending,
            head_copies=0 if is_alone else self._at_first_hook,
            embedding_copies=max(0, self._at_last_hook - self._pending),
            other_copies=max(0, self._within - self._pending),
            copies_after_backward=self._after_backward,
        )


def left_behind(numels: Sequence[int], own_numels: Sequence[int], reducing: Reducing, bucket_bytes: int) -> int:
    """Return the bytes that ZeRO-1's fp32 gradients keep alive until their norm is computed in the step.

    ``numels``: elements of each tensor; ``own_numels``: of those in the rank's partition. Gradients are views of the
    buckets that they were reduced in, which have ``bucket_bytes``, or separate tensors. With buckets, the rank's own
    gradients are freed at once (``copy_grads_in_partition``).
    """
    item_bytes = DTYPE_BYTES[reducing.gradient_dtype]
    if not reducing.copies_to_buffer:
        return sum(rounded(n * item_bytes) for n in numels)
    in_no_bucket = sum(rounded(n * item_bytes) for n in numels if n > reducing.bucket_elements)
    own_in_no_bucket = sum(rounded(n * item_bytes) for n in own_numels if n > reducing.bucket_elements)
    return bucket_bytes + in_no_bucket - own_in_no_bucket if reducing.ranks > 1 else 0


class BucketReduction(Record):
    """One bucket of gradients, and the bytes that its reduction takes."""

    first: int
    """Index of its first tensor."""
    end: int
    """Index after its last tensor."""
    unbucketed_bytes: int
    """Bytes of its gradients if they are not copied to a buffer, else 0."""
    copies_bytes: int
    """Bytes that the reduction allocates."""


def _reductions(numels: Sequence[int], reducing: Reducing) -> Iterator[BucketReduction]:
    """Yield the reductions of all buckets. ``numels``: elements of each tensor in the order in which they come."""
    partition_numel = ceil_div(sum(numels), reducing.ranks) or 1
    item_bytes, offset = DTYPE_BYTES[reducing.gradient_dtype], 0
    for first, end in buckets(numels, reducing.bucket_elements):
        bucket_numels = numels[first:end]
        numel = sum(bucket_numels)
        unbucketed = not reducing.copies_to_buffer or numel > reducing.bucket_elements
        unbucketed_bytes = sum(rounded(n * item_bytes) for n in bucket_numels) if unbucketed else 0
        shared = offset // partition_numel != (offset + numel - 1) // partition_numel
        copies_bytes = _copies(reducing, bucket_numels, partition_numel, shared=shared)
        if reducing.offloads_gradients:  # the clone takes the gradient's place before its norm is taken
            clone_bytes = rounded(numel * item_bytes) if unbucketed else 0
            norm_bytes = max(rounded(NORM_ITEM_BYTES * min(n, partition_numel)) for n in bucket_numels)
            copies_bytes = max(copies_bytes, clone_bytes, norm_bytes)
        yield BucketReduction(first=first, end=end, unbucketed_bytes=unbucketed_bytes, copies_bytes=copies_bytes)
        offset += numel


def _copies(reducing: Reducing, numels: Sequence[int], partition_numel: int, *, shared: bool) -> int:
    """Return the bytes that the reduction of one bucket allocates: a flat copy, a cast of it, and one part in fp32.

    ``numels``: elements of its tensors. ``shared``: several ranks own parts of it, each at most ``partition_numel``
    elements. Slices that follow each other in the bucket and go to the same owner are one. Slices of the fp32 partition
    are not.
    """
    reduced_numel, several_tensors = sum(numels), len(numels) > 1
    makes_flat_copy = False
    if not reducing.copies_to_buffer:
        makes_flat_copy = several_tensors
    elif reducing.sends_slices_apart:
        if not reducing.sends_slices_together:
            reduced_numel = min(reduced_numel, partition_numel)
        slices_are_apart = reducing.sums_slice_in_fp32 or (reducing.round_robin_owners and reducing.ranks > 1)
        makes_flat_copy = (slices_are_apart and several_tensors) or (shared and reducing.sends_slices_together)
    flat_bytes = cast_bytes = fp32_bytes = 0
    if makes_flat_copy:
        flat_bytes = rounded(reduced_numel * DTYPE_BYTES[reducing.gradient_dtype])
    if reducing.communication_dtype != reducing.gradient_dtype:
        cast_bytes = rounded(reduced_numel * DTYPE_BYTES[reducing.communication_dtype])
    if reducing.sums_slice_in_fp32 and reducing.communication_dtype != "fp32":
        fp32_bytes = rounded(min(max(numels), partition_numel) * DTYPE_BYTES["fp32"])
    # the cast replaces the flat copy before a part of it is widened to fp32
    return max(flat_bytes + cast_bytes, (cast_bytes or flat_bytes) + fp32_bytes)


def back_from_host(n_bytes: int) -> int:
    """Bytes of a gradient that ZeRO-3 has written to the host and copies back for its norm (``partition_grads``)."""
    return rounded(n_bytes)


def scattered(numels: Sequence[int], reducing: Reducing, sum_dtype: str) -> HookReductions:
    """Return the bytes that ZeRO-3's reductions allocate in addition to its one bucket of the communication dtype.

    ``numels``: elements of each tensor in the order of the hooks. ``sum_dtype``: the dtype in which partitions are
    summed.

    Sources: runtime/zero/stage3.py (``__avg_scatter_contiguous_grads``, ``__avg_scatter_grads``), runtime/comm/
    coalesced_collectives.py (``reduce_scatter_coalesced``).
    """
    return _scattered(tuple(numels), reducing, sum_dtype)


@lru_cache(maxsize=64)
def _scattered(numels: tuple[int, ...], reducing: Reducing, sum_dtype: str) -> HookReductions:
    """Compute the result of :func:`scattered`, cached: the bytes of ZeRO-3's reductions by the hook in which they run.

    ``numels``: elements of the gradients in the order in which backward computes them. ``reducing``: the engine's
    settings. ``sum_dtype``: dtype of the partitions that gradients are added to.
    """
    gradient_bytes = DTYPE_BYTES[reducing.gradient_dtype]
    peaks = _HookPeaks(len(numels))
    for first, end in buckets(numels, reducing.bucket_elements):
        bucket_numels = numels[first:end]
        unbucketed = not reducing.copies_to_buffer or sum(bucket_numels) > reducing.bucket_elements
        copies_bytes = _scatter_bytes(bucket_numels, reducing, sum_dtype, unbucketed=unbucketed)
        unbucketed_bytes = not_pending = 0
        if unbucketed:
            unbucketed_bytes = sum(rounded(n * gradient_bytes) for n in bucket_numels)
            not_pending = peaks.bytes_that_do_not_wait(first, end, numels, reducing.gradient_dtype)
        peaks.add(
            first,
            end,
            pending=unbucketed_bytes - not_pending,
            reducing=unbucketed_bytes + copies_bytes,
            copies=copies_bytes,
        )
    return peaks.early()


def _scatter_bytes(numels: Sequence[int], reducing: Reducing, sum_dtype: str, *, unbucketed: bool) -> int:
    """Return the most bytes that ZeRO-3's reduction of one bucket allocates on this rank.

    ``numels``: elements of the bucket's tensors, of which each rank gets a shard. ``unbucketed``: their gradients are
    separate tensors. ``sum_dtype``: dtype of the partitions that gradients are added to.
    """
    shards = [ceil_div(n, reducing.ranks) for n in numels]
    if unbucketed or reducing.sends_slices_apart:
        most_bytes, left_bytes = _reduce_scatter_bytes(numels, shards, reducing, sum_dtype, unbucketed=unbucketed)
    else:
        most_bytes, left_bytes = _all_reduce_bytes(numels, shards, reducing, sum_dtype)
    if reducing.offloads_gradients:  # the part as it is summed, and pieces of it in fp64 (_constant_buffered_norm2)
        piece_bytes = [rounded(NORM_ITEM_BYTES * min(n, NORM_PIECE_ELEMENTS)) for n in shards]
        sum_bytes = DTYPE_BYTES[sum_dtype]
        norms = [back_from_host(n * sum_bytes) + piece for n, piece in zip(shards, piece_bytes, strict=True)]
        most_bytes = max(most_bytes, left_bytes + max(norms))
    return most_bytes


def _reduce_scatter_bytes(
    numels: Sequence[int], shards: Sequence[int], reducing: Reducing, sum_dtype: str, *, unbucketed: bool
) -> tuple[int, int]:
    """Return the most bytes of ``reduce_scatter_coalesced``, and those that are left when it is over.

    It casts gradients outside a bucket, which has the communication dtype already. Then it pads all tensors into one
    flat buffer, unless the ranks divide the only tensor, and casts this rank's ``shards`` to ``sum_dtype``.
    """
    communication_bytes = DTYPE_BYTES[reducing.communication_dtype]
    cast = flat = summands = 0
    if unbucketed and reducing.communication_dtype != reducing.gradient_dtype:
        cast = sum(rounded(n * communication_bytes) for n in numels)
    if len(numels) > 1 or sum(numels) % reducing.ranks:
        flat = rounded(sum(shards) * reducing.ranks * communication_bytes)
    if reducing.communication_dtype != sum_dtype:
        summands = sum(rounded(n * DTYPE_BYTES[sum_dtype]) for n in shards)
    return cast + flat + summands, summands or flat or cast


def _all_reduce_bytes(
    numels: Sequence[int], shards: Sequence[int], reducing: Reducing, sum_dtype: str
) -> tuple[int, int]:
    """Return the most bytes of one all-reduce of a bucket, and those that are left when it is over.

    The bucket is scaled into a copy and cast to ``sum_dtype``. Each rank takes its ``shards``, of which those that the
    ranks do not divide evenly are padded.
    """
    numel, sum_bytes = sum(numels), DTYPE_BYTES[sum_dtype]
    scaled = rounded(numel * DTYPE_BYTES[reducing.communication_dtype]) if reducing.ranks > 1 else 0
    widened = rounded(numel * sum_bytes) if reducing.communication_dtype != sum_dtype else 0
    uneven = [shard for n, shard in zip(numels, shards, strict=True) if n % reducing.ranks]
    left = (widened or scaled) + sum(rounded(shard * sum_bytes) for shard in uneven)
    return max(scaled + widened, left), left
