"""Packed rows: with a mask of their documents where the attention kernel does not read positions."""

from __future__ import annotations

import pytest

from memcheck.configs.direct import config_document
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
        ("f.yaml", FACTORY, "unpacked-masked"),
        ("f.yaml", FACTORY + "flash_attn: fa2\n", "unpacked"),
        ("f.yaml", FACTORY.replace("batch_size: 1", "batch_size: 2"), "padded"),
        ("f.yaml", FACTORY + "packing: true\n", "packed"),
        ("f.yaml", FACTORY.replace("Llama-3.1-8B", "Llama-3.1-8B\ndeepspeed: ds_z3_config.json"), "unpacked-masked"),
        ("a.yml", f"{ALONE}pad_to_sequence_len: true\n", "unpacked-masked"),
        ("a.yml", f"{ALONE}pad_to_sequence_len: false\n", "unpacked"),
        ("f.yaml", FACTORY.replace("meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V2-Lite"), "unpacked-masked"),
        ("a.yml", ALONE.replace("meta-llama/Llama-3.1-8B", "google/gemma-3n-E2B-it"), "unpacked"),
    ],
)
def test_a_row_that_is_alone_is_padded_to_a_round_length(name: str, text: str, rows: str) -> None:
    """LLaMA-Factory's and Axolotl's collators do, and hand on a mask of it, which some kernels and models are given."""
    assert values(read(name, text))["training.sequences"] == rows


UNPACKED = AXOLOTL.replace("sample_packing: true", "sample_packing: false\npad_to_sequence_len: false")
STATED = {"gpu": "h100-80gb", "gpus_per_node": 8, "nodes": 1}


def taken(text: str, length: int) -> dict[str, object]:
    """What a config and a stated length are, as a plan's ``training``."""
    document = config_document("a.yml", text.encode(), {**STATED, "sequence_length": length})
    assert document is not None
    assert isinstance(document.values, dict)
    errors = [each.message for each in document.findings if each.severity == "error"]
    assert not errors, errors
    training: dict[str, object] = document.values["training"]
    return training


def test_a_length_below_the_limit_of_rows_that_are_not_packed_is_that_of_the_longest() -> None:
    """The config's length is a limit; the one that a person states decides, wherever it is stated."""
    limit = taken(UNPACKED, 400)["sequence_length"]
    assert limit == values(read("a.yml", UNPACKED))["training.sequence_length"]
    assert taken(UNPACKED, 400)["longest_row"] == 400
    imported = values(read("a.yml", UNPACKED, training__sequence_length=400))
    assert (imported["training.sequence_length"], imported["training.longest_row"]) == (limit, 400)


@pytest.mark.parametrize(("text", "length"), [(AXOLOTL, 400), (UNPACKED, 1 << 20)])
def test_a_length_that_the_rows_cannot_have_is_refused(text: str, length: int) -> None:
    """Packed rows are full, and no row is longer than its limit."""
    document = config_document("a.yml", text.encode(), {**STATED, "sequence_length": length})
    assert document is not None
    assert [each.code for each in document.findings if each.severity == "error"] == ["MEM501"]


def test_rows_that_are_padded_to_the_limit_have_its_length() -> None:
    """`pad_to_sequence_len: true` makes every row as long as the limit: that is no upper bound."""
    text = UNPACKED.replace("pad_to_sequence_len: false", "pad_to_sequence_len: true")
    found = values(read("a.yml", text))
    assert found["training.longest_row"] == found["training.sequence_length"]
