"""Buckets of gradients, and what reducing them takes: by hand, in elements of four bytes."""

from __future__ import annotations

import pytest

from memcheck.frameworks.deepspeed.reduction import Reducing, as_they_appear, buckets, late, left_behind, scattered

K = 1024
PLAIN = Reducing(
    ranks=2,
    limit=2 * K,
    dtype="fp32",
    communication_dtype="fp32",
    fp32_sums=False,
    contiguous=True,
    scatters=True,
    one_all_reduce=True,
    shuffled=False,
    offloads=False,
    frees=True,
    overlaps=False,
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
    assert as_they_appear([K, K, K, K], PLAIN, frees_gradients=True).after_backward == 0
    assert as_they_appear([K, K], PLAIN._replace(limit=4 * K), frees_gradients=True).after_backward == 8 * K
    alone = PLAIN._replace(one_all_reduce=False, limit=4 * K)
    assert as_they_appear([K, K], alone, frees_gradients=True).after_backward == 0
    assert as_they_appear([K, K], alone._replace(scatters=False), frees_gradients=True).after_backward == 0


def test_slices_of_fp32_sums_are_apart() -> None:
    """Each has its place in the partition: they are copied though one rank owns them, and widened one by one."""
    fp32_sums = PLAIN._replace(ranks=1, dtype="bf16", communication_dtype="bf16", fp32_sums=True)
    assert as_they_appear([K, K], fp32_sums, frees_gradients=True).after_backward == 2 * 2 * K + 4 * K


def test_what_others_own_is_let_go_of() -> None:
    """A head larger than a bucket waits for the next hook in ZeRO-2, and for the end of backward in ZeRO-1."""
    head_first = [4 * K, K, K, K]
    second, first = (
        as_they_appear(head_first, PLAIN._replace(frees=frees), frees_gradients=True) for frees in (True, False)
    )
    assert (second.unbucketed_gradients, first.unbucketed_gradients) == (0, 16 * K)
    assert first.after_backward - second.after_backward == 16 * K


def test_a_late_reduction_takes_what_its_buckets_have_not_given() -> None:
    """The first bucket's gradients have left their own storage when the partition comes."""
    assert late([K, K, K, K], PLAIN, 16 * K) == 8 * K
    assert (
        late([K, K, K, K], PLAIN._replace(fp32_sums=True, communication_dtype="bf16"), 16 * K)
        == 16 * K + 8 * K + 4 * K - 8 * K
    )


def test_fp32_gradients_outlive_their_reduction() -> None:
    """As views of the bucket, or by themselves; a rank's own do not."""
    assert left_behind([4 * K, K], [K], PLAIN, 8 * K) == 8 * K + 16 * K
    assert left_behind([4 * K, K], [4 * K], PLAIN, 8 * K) == 8 * K
    assert left_behind([4 * K, K], [4 * K, K], PLAIN._replace(ranks=1), 8 * K) == 0
    assert left_behind([4 * K, K], [K], PLAIN._replace(contiguous=False), 0) == 20 * K


def test_stage_3_interleaves_shards_in_a_copy() -> None:
    """But those of one tensor that divides evenly; widened to the dtype of the sums shard by shard."""
    assert scattered([2 * K], PLAIN, "fp32").after_backward == 0
    assert scattered([K, K], PLAIN, "fp32").after_backward == 8 * K
    narrow = PLAIN._replace(dtype="bf16", communication_dtype="bf16")
    assert scattered([K, K], narrow, "fp32").after_backward == 4 * K + 2 * 2 * K
    assert scattered([K, K], narrow._replace(scatters=False), "fp32").after_backward == 4 * K + 8 * K
