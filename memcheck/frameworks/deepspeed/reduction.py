"""What ZeRO-1 and 2 allocate while they reduce gradients, bucket by bucket.

Read off DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py: ``reduce_independent_p_g_buckets_and_remove_grads`` (when a
bucket is full), ``average_tensor`` (its slices by owner), ``allreduce_bucket`` (their flat copy, and its cast),
``_add_to_grad_partition_buffer`` (fp32 sums), ``_allreduce_noncontiguous_bucket_preserving_fp32``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from memcheck.autograd.tensor import rounded
from memcheck.job.types import DTYPE_BYTES
from memcheck.record import Record

NORM = 8
"""Bytes of an element in which norms of offloaded gradients are computed: fp64 (zero/utils.py, ``get_norm_dtype``)."""
NORM_ELEMENTS = 250_000_000
"""How many elements ZeRO-3 casts to fp64 at once for a norm (``_constant_buffered_norm2``)."""


class Reducing(Record):
    """How gradients are reduced. Sizes are elements."""

    ways: int
    """Ranks that share the optimizer."""
    limit: int
    """Elements that a bucket takes."""
    dtype: str
    """What a gradient is in when it comes to a bucket."""
    wire: str
    """What a bucket is in when it is sent."""
    sums: bool
    """The rank's own are summed in an fp32 partition (``_use_compact_grad_partition_buffer``)."""
    contiguous: bool
    """Gradients move to a buffer as large as a bucket (``contiguous_gradients``)."""
    scatters: bool
    """Each owner's slice apart (``reduce_scatter``), else the bucket at once."""
    joins: bool
    """The slices of all owners go in one all-reduce (``use_multi_rank_bucket_allreduce``)."""
    shuffled: bool
    """Neighbours have other owners (``round_robin_gradients``)."""
    offloads: bool
    """Gradients go to the host: one that no bucket holds is cloned (``_offload_gradient_safety_enabled``), and of each
    a norm is taken in fp64 on its way."""
    frees: bool
    """Gradients that other ranks own are freed once they are reduced: in ZeRO-2."""
    overlaps: bool
    """``overlap_comm``: those outside of buffers wait for the next reduction (``previous_reduced_grads``)."""


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


def late(numels: Sequence[int], how: Reducing, partition: int) -> int:
    """Return the peak bytes of a reduction after the backward, in addition to the gradients of the whole model.

    ``numels``: elements of each tensor in the model's order. ``partition``: bytes of the rank's own gradients, which
    exist from the first bucket on. Gradients that were copied to a bucket are freed.
    """
    highest = moved = held = 0
    for first, last, outside, extra in _reductions(numels, how):
        if not outside:
            moved += sum(rounded(n * DTYPE_BYTES[how.dtype]) for n in numels[first:last])
        held = partition if how.sums else held
        highest = max(highest, held + extra - moved)
        held = partition if how.contiguous else held
        highest = max(highest, held - moved)
    return highest


class Early(Record):
    """Bytes that reductions in backward hooks take, in addition to the buckets."""

    waiting: int = 0
    """Gradients in no bucket, while backward runs."""
    first: int = 0
    """What reducing the first bucket takes in addition to it, if that is one tensor: the head's."""
    last: int = 0
    """What reducing takes when the last tensor arrives: the embedding's."""
    within: int = 0
    """What reducing takes in other hooks, beyond what waits."""
    after_backward: int = 0
    """What it takes, with what waits, when backward is over."""
    once: bool = False
    """Whether all gradients are reduced at once after the backward, and none before."""


def as_they_appear(numels: Sequence[int], how: Reducing, *, moving: bool) -> Early:
    """Return what ZeRO-1 and ZeRO-2 allocate where gradients are reduced in backward hooks.

    ``numels``: elements of each tensor in the order of the hooks. ``moving``: only the reduction keeps gradients that
    are in no bucket; otherwise autograd keeps them as well.
    """
    reductions = list(_reductions(numels, how))
    most = waits = kept = before = head = tail = after_backward = 0
    for first, last, outside, extra in reductions:
        own = outside if moving else 0
        before = before if how.overlaps and not how.contiguous else 0
        # after the last tensor's hook the backward is over
        newest = numels[last - 1] if own and (last == len(numels) or last - first == 1) else 0
        waits = max(waits, kept + before + own - rounded(newest * DTYPE_BYTES[how.dtype]))
        tail, after_backward = after_backward, kept + max(before + own, own + extra)
        head = extra if last == 1 else head
        most = max(most, after_backward if 1 < last < len(numels) else 0)
        before = own
        kept += 0 if how.frees else own
    found = _early(waits, head, most, tail, after_backward, alone=len(numels) < 2)
    return found._replace(once=len(reductions) < 2)


def _early(waits: int, head: int, most: int, tail: int, after_backward: int, *, alone: bool) -> Early:
    """Return the bytes of reductions in hooks, each without the ``waits`` bytes that are pending during the backward.

    ``head``: extra bytes of the first bucket. ``most``, ``tail``: bytes in middle hooks and in the last one, with
    pending ones. ``alone``: there is one tensor, which is reduced after its backward.
    """
    return Early(
        waiting=waits,
        first=0 if alone else head,
        last=max(0, tail - waits),
        within=max(0, most - waits),
        after_backward=after_backward,
    )


def left_behind(numels: Sequence[int], own: Sequence[int], how: Reducing, buffers: int) -> int:
    """Return the bytes that ZeRO-1's fp32 gradients keep alive until their norm is computed in the step.

    They are views of the buckets that they were reduced in, whose bytes are ``buffers``, or separate tensors. The
    rank's ``own`` gradients are freed at once where there are buckets (``copy_grads_in_partition``).
    """
    item = DTYPE_BYTES[how.dtype]
    if not how.contiguous:
        return sum(rounded(n * item) for n in numels)
    in_no_bucket = sum(rounded(n * item) for n in numels if n > how.limit)
    own_in_no_bucket = sum(rounded(n * item) for n in own if n > how.limit)
    return buffers + in_no_bucket - own_in_no_bucket if how.ways > 1 else 0


def _reductions(numels: Sequence[int], how: Reducing) -> Iterator[tuple[int, int, int, int]]:
    """Yield each bucket as (from, to, bytes of its gradients in no buffer, bytes that its reduction allocates).

    ``from`` and ``to`` are indices of ``numels``.
    """
    size = -(-sum(numels) // how.ways) or 1
    item, offset = DTYPE_BYTES[how.dtype], 0
    for first, last in buckets(numels, how.limit):
        count = sum(numels[first:last])
        alone = not how.contiguous or count > how.limit
        outside = sum(rounded(n * item) for n in numels[first:last]) if alone else 0
        extra = _copies(how, numels[first:last], count, offset // size != (offset + count - 1) // size, size)
        if how.offloads:  # the clone takes the gradient's place before its norm is taken
            cloned = rounded(count * item) if alone else 0
            extra = max(extra, cloned, *(rounded(NORM * min(n, size)) for n in numels[first:last]))
        yield first, last, outside, extra
        offset += count


def _copies(how: Reducing, numels: Sequence[int], count: int, shared: bool, size: int) -> int:
    """Return the bytes that the reduction of one bucket of ``count`` elements allocates.

    ``numels``: elements of its tensors. ``shared``: several ranks own parts of it, each at most ``size`` elements.

    Slices that follow each other in the bucket and go to the same owner are one; those of the fp32 partition are not.
    """
    alike = len(numels) == 1
    flat = 0
    if not how.contiguous:
        flat = 0 if alike else count
    elif how.scatters:
        count = count if how.joins else min(count, size)
        apart = (how.sums or (how.shuffled and how.ways > 1)) and not alike
        flat = count if apart or (shared and how.joins) else 0
    copied = rounded(flat * DTYPE_BYTES[how.dtype])
    cast = rounded(count * DTYPE_BYTES[how.wire]) if how.wire != how.dtype else 0
    widened = rounded(min(max(numels), size) * 4) if how.sums and how.wire != "fp32" else 0
    return max(copied + cast, (cast or copied) + widened)


def back_from_host(n_bytes: int) -> int:
    """Bytes of a gradient that ZeRO-3 has written to the host and copies back for its norm (``partition_grads``)."""
    return rounded(n_bytes)


def scattered(numels: Sequence[int], how: Reducing, accumulated: str) -> Early:
    """Return what ZeRO-3's reductions allocate in addition to its one bucket, which has the communication dtype.

    ``numels``: elements of each tensor in the order of the hooks.

    Sources: runtime/zero/stage3.py (``__avg_scatter_contiguous_grads``, ``__avg_scatter_grads``), runtime/comm/
    coalesced_collectives.py (``reduce_scatter_coalesced``). ``accumulated``: the dtype in which partitions are summed.
    """
    return _scattered(tuple(numels), how, accumulated)


@lru_cache(maxsize=64)
def _scattered(numels: tuple[int, ...], reducing: Reducing, accumulated: str) -> Early:
    """Bytes of ZeRO-2's reduction during backward: pending gradients, and temporaries at the head, the last and other
    parameters.

    ``numels``: elements of the gradients in the order in which backward computes them. ``reducing``: the engine's
    settings. ``accumulated``: dtype of the partitions that gradients are added to.
    """
    gradient_bytes, communication_bytes, accumulated_bytes = (
        DTYPE_BYTES[name] for name in (reducing.dtype, reducing.wire, accumulated)
    )
    highest = pending = head = tail = after_backward = 0
    for first, last in buckets(numels, reducing.limit):
        bucket_numels, count = numels[first:last], sum(numels[first:last])
        unbucketed = not reducing.contiguous or count > reducing.limit
        shards = [-(-n // reducing.ways) for n in bucket_numels]
        if unbucketed or reducing.scatters:  # what is in the bucket has its dtype
            cast = (
                sum(rounded(n * communication_bytes) for n in bucket_numels)
                if unbucketed and reducing.wire != reducing.dtype
                else 0
            )
            flat = (
                0
                if len(bucket_numels) == 1 and count % reducing.ways == 0
                else rounded(sum(shards) * reducing.ways * communication_bytes)
            )
            summands = sum(rounded(n * accumulated_bytes) for n in shards) if reducing.wire != accumulated else 0
            extra, left = cast + flat + summands, summands or flat or cast
        else:
            scaled = rounded(count * communication_bytes) if reducing.ways > 1 else 0
            widened = rounded(count * accumulated_bytes) if reducing.wire != accumulated else 0
            padded = sum(
                rounded(s * accumulated_bytes) for n, s in zip(bucket_numels, shards, strict=True) if n % reducing.ways
            )
            left = (widened or scaled) + padded
            extra = max(scaled + widened, left)
        if reducing.offloads:  # the part as it is summed, and pieces of it in fp64 (_constant_buffered_norm2)
            norms = [back_from_host(n * accumulated_bytes) + rounded(NORM * min(n, NORM_ELEMENTS)) for n in shards]
            extra = max(extra, left + max(norms))
        outside = sum(rounded(n * gradient_bytes) for n in bucket_numels) if unbucketed else 0
        newest = bucket_numels[-1] if unbucketed and (last == len(numels) or len(bucket_numels) == 1) else 0
        pending = max(pending, outside - rounded(newest * gradient_bytes))
        tail, after_backward = after_backward, outside + extra
        head = extra if last == 1 else head
        highest = max(highest, after_backward if 1 < last < len(numels) else 0)
    return _early(pending, head, highest, tail, after_backward, alone=len(numels) < 2)
