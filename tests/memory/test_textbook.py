"""The papers' and calculators' formulas, on the figures that those print."""

from __future__ import annotations

import pytest

from tests.memory.textbook import (
    GIB,
    adam_training,
    coarse_activations,
    distributed_adam,
    kv_cache,
    layer_activations,
    multiplied_activations,
)

LLAMA_8B = 8_030_261_248
LLAMA_2_7B_WITHOUT_HEAD = 6_607_343_616


def test_a_layer_without_parallelism_keeps_34_sbh_and_5_as2b() -> None:
    """Korthikanti's first row: s b h (34 + 5 a s / h)."""
    s, b, h, a = 2048, 4, 12288, 96
    assert layer_activations(s, b, h, a) == s * b * h * 34 + 5 * a * s * s * b


@pytest.mark.parametrize("tensor", [2, 4, 8])
def test_parallelism_divides_what_the_paper_says(tensor: int) -> None:
    """Tensor parallelism leaves 10 s b h whole, sequence parallelism leaves nothing whole."""
    s, b, h, a = 2048, 1, 4096, 32
    sbh, attention = s * b * h, 5 * a * s * s * b
    alone = layer_activations(s, b, h, a, tensor=tensor)
    both = layer_activations(s, b, h, a, tensor=tensor, sequence_parallel=True)
    assert alone == 10 * sbh + (24 * sbh + attention) // tensor
    assert both == (34 * sbh + attention) // tensor
    assert layer_activations(s, b, h, a, tensor=tensor, recompute="full") == 2 * sbh
    assert (
        layer_activations(s, b, h, a, tensor=tensor, sequence_parallel=True, recompute="selective")
        == 34 * sbh // tensor
    )


def test_the_training_memory_calculators_figure() -> None:
    """8.03 B in bf16, Adam 12 N, selective recompute, 4,096 tokens: 16.1 + 16.1 + 96.4 + 18.3 + 14.7 = 161.4 GB."""
    activations = 32 * layer_activations(4096, 1, 4096, 32, recompute="selective")
    found = adam_training(LLAMA_8B, activations)
    assert round(found.parameters / 1e9, 1) == 16.1
    assert round(found.gradients / 1e9, 1) == 16.1
    assert round(found.optimizer / 1e9, 1) == 96.4
    assert round(found.activations / 1e9, 1) == 18.3
    assert round(found.total / 1e9, 1) == 161.4


def test_the_lattice_calculators_figure() -> None:
    """Llama 7B, 4,096 tokens: 36.9, 12.3, 49.2 and 40.7 GiB; the headline of 153.1 is their sum and a tenth."""
    n = LLAMA_2_7B_WITHOUT_HEAD
    activations = coarse_activations(32, 4096, 1, 4096, 32, 11008)
    assert [round(x / GIB, 1) for x in (6 * n, 2 * n, 8 * n, activations)] == [36.9, 12.3, 49.2, 40.7]
    found = adam_training(n, activations, state_bytes=12)
    assert round(found.total / GIB, 1) == 153.1


def test_the_figure_without_activations() -> None:
    """TP 4 at batch 4 and 8,192 tokens is advertised as 33.4: sixteen bytes of 8.15 B parameters over four, and a tenth."""
    assert round(16 * 8.15e9 / 4 * 1.1 / GIB, 1) == 33.4


def test_kv_cache_of_llama_8b() -> None:
    """A token of Llama-3.1-8B takes 128 KiB of bf16 cache."""
    assert kv_cache(32, 8, 128, 1, 1, 2) == 128 * 1024


def test_a_multiplier_scales_everything() -> None:
    """The generic form's activations are proportional to each of its numbers."""
    one = multiplied_activations(1, 4096, 4096, 32, 10, 2)
    assert one == 4096 * 4096 * 32 * 10 * 2
    assert multiplied_activations(2, 4096, 4096, 32, 10, 2, checkpointing=0.5) == one


def test_the_distributed_optimizer_costs_6_and_12_over_d() -> None:
    """18 bytes per parameter alone, 7.5 over eight ranks."""
    assert distributed_adam(1000, 1) == 18_000
    assert distributed_adam(1000, 8) == 7_500
