"""What an optimizer keeps of one tensor, byte by byte."""

from __future__ import annotations

import pytest

from memcheck.accounts.state import PAGED_MINIMUM, LocalTensor, optimizer_state_bytes

MIB = 2**20


def states(optimizer: str, numel: int, dtype: str = "fp32") -> int:
    """Of a trained matrix with so many elements."""
    return optimizer_state_bytes(LocalTensor("weight", (numel,), True, matrix=True), numel, optimizer, dtype)


@pytest.mark.parametrize(
    ("optimizer", "codes", "block", "table"),
    [
        ("adamw-torchao-8bit", MIB, 256, 256),
        ("adamw-torchao-4bit", MIB // 2, 128, 16),
        ("adamw-torchao-fp8", MIB, 256, 0),
    ],
)
def test_torchao_keeps_codes_scales_and_a_table_of_each_moment(
    optimizer: str, codes: int, block: int, table: int
) -> None:
    """A fp32 scale for each block; the table of codes is rounded up to a block of the allocator, or is not there."""
    rounded_table = 1024 if table == 256 else 512 if table else 0
    assert states(optimizer, MIB) == 2 * (codes + MIB // block * 4 + rounded_table)


def test_paged_states_leave_the_allocator_from_a_size_on() -> None:
    """bitsandbytes puts them into managed memory from 100,000 elements on; a smaller tensor has both on the GPU."""
    assert states("paged-adamw", PAGED_MINIMUM) == 0
    below = PAGED_MINIMUM - 32  # a whole number of the allocator's blocks
    assert states("paged-adamw", below) == 2 * 4 * below == states("adamw", below) - 512
