"""Keys of the language model inside a multimodal configuration: which are read, and what is said of misplaced ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.families.registry import read_architecture
from memcheck.judge import Gate, check_file
from memcheck.models.reader import ArchitectureError

SIGLIP = {
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16,
    "num_hidden_layers": 2, "num_image_tokens": 256, "patch_size": 14, "image_size": 224, "projection_dim": 2048,
    "projector_hidden_act": "gelu_fast", "vision_use_head": False,
}  # fmt: skip
GEMMA = {
    "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8, "num_hidden_layers": 2,
    "num_key_value_heads": 1, "vocab_size": 257216, "num_image_tokens": 256,
}  # fmt: skip
GEMMA_2 = {"model_type": "gemma2", "head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256}


@pytest.mark.parametrize("text", [{"model_type": "gemma"}, GEMMA_2], ids=["PaliGemma", "PaliGemma 2"])
def test_image_tokens_of_paligemma(text: dict[str, Any]) -> None:
    """Released files have ``num_image_tokens`` in both parts; the class sets it from the tower's sizes."""
    config = {
        "model_type": "paligemma",
        "projection_dim": 2048,
        "vision_config": SIGLIP,
        "text_config": {**GEMMA, **text},
    }
    with_key = read_architecture(config, strict=True)
    bare = {key: value for key, value in config["text_config"].items() if key != "num_image_tokens"}  # type: ignore[attr-defined]
    assert with_key == read_architecture({**config, "text_config": bare}, strict=True)


def minimax(**text: Any) -> dict[str, Any]:
    """A small MiniMax M3."""
    return {
        "model_type": "minimax_m3_vl_text", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "rotary_dim": 32, "intermediate_size": 64, "dense_intermediate_size": 512,
        "shared_intermediate_size": 64, "vocab_size": 1000, "num_local_experts": 8, "num_experts_per_tok": 2, **text,
    }  # fmt: skip


def routed(config: dict[str, Any]) -> list[bool]:
    """Which layers have experts."""
    layers = read_architecture(config, strict=True).layers()
    return [hasattr(layer.mlp, "experts") for layer in layers]


def test_dense_layers_of_minimax() -> None:
    """``first_k_dense_replace`` counts them where no list does, and agrees with a list where one does."""
    assert routed(minimax(first_k_dense_replace=1, n_shared_experts=1)) == [False, True, True, True]
    assert routed(minimax()) == [True] * 4
    listed = minimax(mlp_layer_types=["dense", "dense", "sparse", "sparse"], first_k_dense_replace=2)
    assert routed(listed) == [False, False, True, True]
    for wrong in ({"first_k_dense_replace": 1}, {"first_k_dense_replace": 3}):
        with pytest.raises(ArchitectureError, match="begins with 2 dense"):
            read_architecture({**listed, **wrong}, strict=True)


def test_minimax_builds_one_shared_expert() -> None:
    """Another number is an error, never another model's size."""
    with pytest.raises(ArchitectureError, match="one shared expert"):
        read_architecture(minimax(n_shared_experts=2), strict=True)


def said(overrides: dict[str, Any], model: str = "gemma-3-12b", **spec: object) -> tuple[str, str | None]:
    """The one error about overrides."""
    plan = {
        "memcheck": 1,
        "model": {"name": model, "overrides": overrides, **spec},
        "hardware": {"gpu": "h200"},
        "training": {"framework": "huggingface", "micro_batch_size": 1, "sequence_length": 1024},
    }
    (result,), _ = check_file("plan.yaml", json.dumps(plan).encode(), Gate())
    (found,) = (each for each in result.findings if each.code == "MEM023")
    return found.message, found.help


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "vocab_size", "attention_bias", "num_hidden_layrs"]
)
@pytest.mark.parametrize("model", ["gemma-3-12b", "paligemma2-3b-pt-224"])
def test_an_override_beside_text_config_is_told_where_it_belongs(model: str, key: str) -> None:
    """Also a key that the file leaves to its class, and one that is nearly spelt."""
    message, help = said({key: 4}, model) if key != "attention_bias" else said({key: True}, model)
    assert f"unknown key {key}" in message or f"{key} outside text_config decides nothing" in message
    assert help is not None
    assert help.startswith("write `text_config: {" + key.replace("layrs", "layers"))


def test_other_unknown_keys_are_removed() -> None:
    """What no part of the model knows belongs nowhere."""
    assert said({"zebra": 3})[1] == "remove it"


def test_the_language_model_alone_nests_nothing() -> None:
    """``part: language`` is read without what is around it."""
    _, help = said({"text_config": {"num_hidden_layers": 4}}, part="language")
    assert help == "write its keys one level up: they are not nested here"
