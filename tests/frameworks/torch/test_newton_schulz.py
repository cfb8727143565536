"""Muon's orthogonalisation on FSDP2's shards: what traces of the step have, and the ways DTensor takes."""

from __future__ import annotations

import pytest

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.own_optimizers import exchange_us, gather_us, newton_schulz
from memcheck.frameworks.torch.resident import Mesh, step_temporaries

WIDE, TALL, SQUARE = (896, 4864), (4864, 896), (896, 896)
LARGE_WIDE, LARGE_TALL = (4096, 14336), (14336, 4096)


def temporaries(ways: int, *shapes: tuple[int, int], item: int = 4) -> int:
    """The most that one of the matrices needs."""
    found = []
    for shape in shapes:
        tensor = LocalTensor("w", shape, trained=True, matrix=True)
        rows = -(-shape[0] // ways)
        found.append(newton_schulz(tensor, rows * shape[1], item, Mesh(ways, 8)))
    return max(found)


@pytest.mark.parametrize(
    ("ways", "shapes", "item", "traced"),
    [
        (2, (WIDE, TALL, SQUARE), 4, 36_471_808),
        (4, (WIDE, TALL, SQUARE), 4, 17_892_352),
        (8, (WIDE, TALL, SQUARE), 4, 11_355_136),
        (8, (WIDE, TALL, SQUARE), 2, 9_176_064),
        (16, (WIDE, TALL, SQUARE), 4, 8_086_528),
        (64, (WIDE, TALL, SQUARE), 4, 12_498_432),
        (8, (SQUARE,), 4, 4_416_512),
        (8, (LARGE_WIDE, LARGE_TALL), 4, 188_744_704),
        (64, (LARGE_WIDE, LARGE_TALL), 4, 139_723_776),
    ],
)
def test_temporaries_are_the_traced_ones(
    ways: int, shapes: tuple[tuple[int, int], ...], item: int, traced: int
) -> None:
    """Of Qwen2.5's and Llama's layers on torch 2.13, nodes of eight GPUs: but for two scalars to the byte."""
    assert temporaries(ways, *shapes, item=item) == traced - 1024


def test_a_tall_matrix_of_few_columns_is_there_twice() -> None:
    """What adapters of stacked experts have: a trace of four ranks has 1.375 MiB beside the states, and two scalars."""
    assert temporaries(4, (2048, 256)) == 1_441_792


def test_a_matrix_is_copied_from_its_own_dtype() -> None:
    """fp32 adapters over a bf16 base: the update is in their dtype (traced: 4.25 MiB on one rank)."""
    adapter = LocalTensor("lora_B", (2048, 256), trained=True, dtype="fp32", matrix=True)
    assert step_temporaries([(adapter, adapter.numel)], "muon", "for-loop", "bf16") == 4_456_448


def test_a_whole_matrix_is_not_exchanged() -> None:
    """One GPU: the update, two copies of X, two Gram matrices."""
    tensor = LocalTensor("w", TALL, trained=True, matrix=True)
    n, gram = tensor.numel, 2 * 896**2
    assert newton_schulz(tensor, n, 4, Mesh()) == 4 * n + 2 * 2 * n + 2 * gram


def test_two_ranks_gather() -> None:
    """An exchange between two moves half of what a gather does, twice; between eight it is the cheaper one."""
    two, eight = Mesh(2, 8), Mesh(8, 8)
    size = 2.0 * 4096 * 14336
    assert gather_us(two, size) < 2 * exchange_us(two, size)
    assert gather_us(eight, size) > 2 * exchange_us(eight, size)
