"""Beam's configuration: what decides its layers, and what is refused where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from memcheck.families.architecture import read_architecture
from memcheck.models.errors import ArchitectureError
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Attention, Mlp, Moe
from tests.models.configs import without


def small(**keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()["beam"]["config"]
    return {**config, **keys}


def test_parameters_are_those_of_the_class() -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small())) == added()["beam"]["parameters"]


def test_layers_that_see_all_are_not_turned() -> None:
    """Their queries are scaled by position instead; the others' have a window and tables of positions."""
    windowed, full, _ = (b.mixer for b in read_architecture(small()).layers())
    assert isinstance(windowed, Attention)
    assert isinstance(full, Attention)
    assert (windowed.window, windowed.rotary_dim, windowed.scaled_queries) == (256, 128, False)
    assert (full.window, full.rotary_dim, full.scaled_queries) == (None, 0, True)


def test_a_kind_whose_rotary_parameters_are_there_is_turned() -> None:
    """``rope_parameters`` names each kind of layers; null alone leaves one as it is."""
    every = {kind: {"rope_type": "default"} for kind in ("sliding_attention", "full_attention")}
    a = read_architecture(small(rope_parameters=every))
    assert all(isinstance(b.mixer, Attention) and b.mixer.rotary_dim == 128 for b in a.layers())
    assert a.rotary_tables == 2


def test_by_default_the_last_layer_sees_all_and_the_first_three_are_dense() -> None:
    """As the class makes its lists."""
    bare = without(small(num_hidden_layers=5), "layer_types", "mlp_layer_types")
    layers = read_architecture(bare).layers()
    windows = [b.mixer.window for b in layers if isinstance(b.mixer, Attention)]
    assert windows == [256] * 4 + [None]
    assert [type(b.mlp) for b in layers] == [Mlp] * 3 + [Moe] * 2


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types"),
        ({"n_group": 8}, "n_group"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rope_parameters": "default"}, "rope_parameters"),
        ({"num_shared_experts": 1}, "num_shared_experts"),
    ],
)
def test_what_the_class_does_not_build_is_refused(keys: dict[str, Any], where: str) -> None:
    """Each is an error at its key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(small(**keys), strict=True)
    assert caught.value.key == where
