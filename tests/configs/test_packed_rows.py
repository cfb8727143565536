"""Packed rows: with a mask of their documents where the attention kernel does not read positions."""

from __future__ import annotations

import pytest

from tests.configs.test_trainers import AXOLOTL, FACTORY, TRL, read, values

ALONE = AXOLOTL.replace("sample_packing: true\nmicro_batch_size: 2", "micro_batch_size: 1").replace(
    "flash_attention_2", "sdpa"
)


@pytest.mark.parametrize(("kernel", "rows"), [("", "masked"), ("flash_attn: fa2\n", "packed")])
def test_packed_rows_without_flash_attention_come_with_a_mask(kernel: str, rows: str) -> None:
    """LLaMA-Factory's `neat_packing` tells the rows' parts apart by a mask, which FlashAttention does not need."""
    assert values(read("f.yaml", FACTORY + "neat_packing: true\n" + kernel))["training.sequences"] == rows


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_rows_that_axolotl_packs_without_flash_attention_come_with_a_mask(kernel: str) -> None:
    """`sample_packing` keeps documents apart by a mask where the kernel does not read positions."""
    text = AXOLOTL.replace("flash_attention_2", kernel)
    assert values(read("a.yml", text))["training.sequences"] == "masked"


@pytest.mark.parametrize(
    ("added", "rows"),
    [
        ("", "flattened"),
        ("packing_strategy: wrapped\n", "packed"),
        ("attn_implementation: flash_attention_2\n", "packed"),
    ],
)
def test_trl_lays_packed_rows_end_to_end(added: str, rows: str) -> None:
    """Best-fit packing hands on positions alone, of which transformers makes a mask of one long row."""
    kept = [line for line in TRL.splitlines() if not line.startswith(("packing", "attn_implementation"))]
    found = values(read("t.yaml", "\n".join([*kept, "packing: true", added])))
    assert found["training.sequences"] == rows


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("f.yaml", FACTORY, "masked"),
        ("f.yaml", FACTORY + "flash_attn: fa2\n", "packed"),
        ("f.yaml", FACTORY.replace("batch_size: 1", "batch_size: 2"), "padded"),
        ("f.yaml", FACTORY + "packing: true\n", "packed"),
        ("f.yaml", FACTORY.replace("Llama-3.1-8B", "Llama-3.1-8B\ndeepspeed: ds_z3_config.json"), "masked"),
        ("a.yml", f"{ALONE}pad_to_sequence_len: true\n", "masked"),
        ("a.yml", f"{ALONE}pad_to_sequence_len: false\n", "packed"),
        ("f.yaml", FACTORY.replace("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V2-Lite"), "masked"),
        ("a.yml", ALONE.replace("meta-llama/Llama-3.1-8B", "google/gemma-3n-E2B-it"), "packed"),
    ],
)
def test_a_row_that_is_alone_is_padded_to_a_round_length(name: str, text: str, rows: str) -> None:
    """LLaMA-Factory's and Axolotl's collators do, and hand on a mask of it, which some kernels and models are given."""
    assert values(read(name, text))["training.sequences"] == rows
