"""Inkling's configuration: what decides its layers, and what is refused where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added, added_plans
from benchmarks.drawn import predicted
from memcheck.families.architecture import read_architecture
from memcheck.models.errors import ArchitectureError
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Attention, Mlp, Moe
from tests.models.configs import without


def small(**keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()["inkling_text"]["config"]
    return {**config, **keys}


def test_parameters_are_those_of_the_class() -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small())) == added()["inkling_text"]["parameters"]


def test_the_hub_names_its_own_keys() -> None:
    """Windowed layers by number, the number of dense layers, and the dense width beside the experts'."""
    bare = without(small(), "layer_types", "mlp_layer_types", "moe_intermediate_size", "intermediate_size")
    keys = {"local_layer_ids": [0, 1], "dense_mlp_idx": 1, "dense_intermediate_size": 2048, "intermediate_size": 512}
    assert read_architecture({**bare, **keys}).blocks == read_architecture(small()).blocks


def test_windowed_layers_have_sizes_of_their_own() -> None:
    """Heads of windowed layers are ``swa_*``, and their biases reach as far as the window."""
    first, *_, last = read_architecture(small()).layers()
    assert isinstance(first.mixer, Attention)
    assert isinstance(last.mixer, Attention)
    assert (first.mixer.kv_heads, last.mixer.kv_heads) == (4, 2)
    assert first.mixer.relative is not None
    assert last.mixer.relative is not None
    assert (first.mixer.relative.extent, last.mixer.relative.extent) == (256, 512)
    assert isinstance(first.mlp, Mlp)
    assert isinstance(last.mlp, Moe)


def test_logits_beyond_the_words_are_dropped() -> None:
    """The loss reads the logits of real words; without padding it reads all."""
    assert read_architecture(small()).kept_words == 1990
    assert read_architecture(small(unpadded_vocab_size=None)).kept_words == 0


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"layer_types": ["hybrid", "hybrid"]}, "layer_types"),
        ({"layer_types": ["hybrid", "full_attention", "hybrid"]}, "layer_types"),
        ({"mlp_layer_types": ["dense", "moe", "sparse"]}, "mlp_layer_types"),
        ({"swa_num_key_value_heads": 3}, "swa_num_key_value_heads"),
        ({"n_shared_experts": 0}, "n_shared_experts"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"d_rel": 0}, "d_rel"),
        ({"conv_layers": 3}, "conv_layers"),
    ],
)
def test_what_the_class_does_not_build_is_refused(keys: dict[str, Any], where: str) -> None:
    """Each is an error at its key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(small(**keys), strict=True)
    assert caught.value.key == where


def test_the_whole_model_is_refused_and_its_language_model_read() -> None:
    """Towers of pictures and sounds have no model: the error says how to size the language model alone."""
    whole = {"model_type": "inkling_mm_model", "text_config": small(), "audio_config": {}, "vision_config": {}}
    with pytest.raises(ArchitectureError, match="vision tower") as caught:
        read_architecture(whole)
    assert caught.value.key == "vision_config"
    assert "part: language" in caught.value.help
    assert read_architecture({**whole, "vision_config": None}).blocks == read_architecture(small()).blocks


def test_a_fused_convolution_keeps_its_fp32_input() -> None:
    """Autocast does not reach causal-conv1d's function: each convolution keeps two bytes more of a channel and token
    than PyTorch's own, which autocast gives bf16.
    """
    plan = added_plans()["inkling_text added, sdpa, none, bf16-mixed"]
    fused = {**plan, "training": {**plan["training"], "kernels": {"ssm": "fused"}}}
    (slow,), (fast,) = predicted(plan).values(), predicted(fused).values()
    tokens, channels = 2 * 1024, 3 * 2 * 1024 + 2 * (2 * 4 + 2) * 128
    assert fast["loss"] - slow["loss"] == pytest.approx(2 * tokens * channels, rel=0.01)
