"""Buckets of gradients, and what reducing them takes: by hand, in elements of four bytes."""

from __future__ import annotations

import pytest

from memcheck.frameworks.deepspeed.reduction import Reducing, as_they_appear, buckets, late, left_behind, scattered

K = 1024
PLAIN = Reducing(
    ranks=2,
    bucket_elements=2 * K,
    gradient_dtype="fp32",
    communication_dtype="fp32",
    sums_slice_in_fp32=False,
    copies_to_buffer=True,
    sends_slices_apart=True,
    sends_slices_together=True,
    round_robin_owners=False,
    offloads_gradients=False,
    frees_others_gradients=True,
    overlaps_comm=False,
)
"""Partitions of half of the elements; a bucket of 8,192 bytes."""


@pytest.mark.parametrize(
    ("numels", "found"),
    [
        ([], []),
        ([1, 1, 1, 1], [(0, 2), (2, 4)]),
        ([3, 1, 1], [(0, 1), (1, 3)]),
        ([1, 3, 1], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_a_bucket_is_full_when_the_next_tensor_does_not_fit(numels: list[int], found: list[tuple[int, int]]) -> None:
    """One that is larger than a bucket is reduced alone."""
    assert list(buckets(numels, 2)) == found


def test_a_bucket_of_several_owners_is_copied() -> None:
    """Slices of one owner are one slice, which is reduced where it lies."""
    assert as_they_appear([K, K, K, K], PLAIN, frees_gradients=True).copies_after_backward == 0
    assert (
        as_they_appear([K, K], PLAIN._replace(bucket_elements=4 * K), frees_gradients=True).copies_after_backward
        == 8 * K
    )
    alone = PLAIN._replace(sends_slices_together=False, bucket_elements=4 * K)
    assert as_they_appear([K, K], alone, frees_gradients=True).copies_after_backward == 0
    assert (
        as_they_appear([K, K], alone._replace(sends_slices_apart=False), frees_gradients=True).copies_after_backward
        == 0
    )


def test_slices_of_fp32_sums_are_apart() -> None:
    """Each has its place in the partition: they are copied though one rank owns them, and widened one by one."""
    fp32_sums = PLAIN._replace(ranks=1, gradient_dtype="bf16", communication_dtype="bf16", sums_slice_in_fp32=True)
    assert as_they_appear([K, K], fp32_sums, frees_gradients=True).copies_after_backward == 2 * 2 * K + 4 * K


def test_what_others_own_is_let_go_of() -> None:
    """A head larger than a bucket waits for the next hook in ZeRO-2, and for the end of backward in ZeRO-1."""
    head_first = [4 * K, K, K, K]
    second, first = (
        as_they_appear(head_first, PLAIN._replace(frees_others_gradients=frees), frees_gradients=True)
        for frees in (True, False)
    )
    assert (second.unbucketed_gradients, first.unbucketed_gradients) == (0, 16 * K)
    assert first.copies_after_backward - second.copies_after_backward == 16 * K


def test_a_late_reduction_takes_what_its_buckets_have_not_given() -> None:
    """The first bucket's gradients have left their own storage when the partition comes."""
    assert late([K, K, K, K], PLAIN, 16 * K) == 8 * K
    assert (
        late([K, K, K, K], PLAIN._replace(sums_slice_in_fp32=True, communication_dtype="bf16"), 16 * K)
        == 16 * K + 8 * K + 4 * K - 8 * K
    )


def test_fp32_gradients_outlive_their_reduction() -> None:
    """As views of the bucket, or by themselves; a rank's own do not."""
    assert left_behind([4 * K, K], [K], PLAIN, 8 * K) == 8 * K + 16 * K
    assert left_behind([4 * K, K], [4 * K], PLAIN, 8 * K) == 8 * K
    assert left_behind([4 * K, K], [4 * K, K], PLAIN._replace(ranks=1), 8 * K) == 0
    assert left_behind([4 * K, K], [K], PLAIN._replace(copies_to_buffer=False), 0) == 20 * K


def test_stage_3_interleaves_shards_in_a_copy() -> None:
    """But those of one tensor that divides evenly; widened to the dtype of the sums shard by shard."""
    assert scattered([2 * K], PLAIN, "fp32").copies_after_backward == 0
    assert scattered([K, K], PLAIN, "fp32").copies_after_backward == 8 * K
    narrow = PLAIN._replace(gradient_dtype="bf16", communication_dtype="bf16")
    assert scattered([K, K], narrow, "fp32").copies_after_backward == 4 * K + 2 * 2 * K
    assert scattered([K, K], narrow._replace(sends_slices_apart=False), "fp32").copies_after_backward == 4 * K + 8 * K
