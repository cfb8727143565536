"""Hy 4's configuration: what decides its layers, and what is refused where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from memcheck.families.architecture import read_architecture
from memcheck.models.errors import ArchitectureError
from memcheck.models.parameters import count_parameters
from memcheck.models.types import LatentAttention


def small(**keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()["hy_v4"]["config"]
    return {**config, **keys}


def test_parameters_are_those_of_the_class() -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small())) == added()["hy_v4"]["parameters"]


def test_layers_share_the_choice_of_one_before_them() -> None:
    """By default the first layer and every fourth behind it choose keys."""
    config = {k: v for k, v in small(num_hidden_layers=6).items() if k not in ("indexer_types", "mlp_layer_types")}
    layers = read_architecture({**config, "layer_types": ["indexed_attention"] * 6}).layers()
    assert [bool(b.mixer.index_heads) for b in layers if isinstance(b.mixer, LatentAttention)] == [
        True, True, False, False, False, True,
    ]  # fmt: skip


def test_key_heads_are_what_the_class_makes_them() -> None:
    """The class writes over ``num_key_value_heads`` and ``head_dim``: other values change nothing."""
    assert read_architecture(small(num_key_value_heads=4, head_dim=8)).blocks == read_architecture(small()).blocks


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"indexer_types": ["full", "full"]}, "indexer_types"),
        ({"indexer_types": ["shared", "full", "full"]}, "indexer_types"),
        ({"indexer_types": ["full", "half", "full"]}, "indexer_types"),
        ({"layer_types": ["indexed_attention", "sliding_attention", "indexed_attention"]}, "layer_types"),
        ({"mlp_layer_types": ["dense", "moe", "sparse"]}, "mlp_layer_types"),
        ({"q_lora_rank": None}, "q_lora_rank"),
        ({"n_shared_experts": 0}, "n_shared_experts"),
        ({"hc_mult": 1}, "hc_mult"),
        ({"index_topk": 0}, "index_topk"),
        ({"hc_rounds": 3}, "hc_rounds"),
    ],
)
def test_what_the_class_does_not_build_is_refused(keys: dict[str, Any], where: str) -> None:
    """Each is an error at its key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(small(**keys), strict=True)
    assert caught.value.key == where
