"""RecurrentGemma's configuration: what decides its layers, and what recomputed ones leave."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added, added_plans
from benchmarks.drawn import predicted
from memcheck.families.architecture import read_architecture
from memcheck.models.errors import ArchitectureError
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Attention, Mixer, Mlp
from tests.models.configs import without


def small(**keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()["recurrent_gemma"]["config"]
    return {**config, **keys}


def test_parameters_are_those_of_the_class() -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small(), strict=True)) == added()["recurrent_gemma"]["parameters"]


def test_kinds_of_layers_are_repeated() -> None:
    """By default two recurrent layers, then one of windowed attention that makes its own tables."""
    layers = read_architecture(without(small(num_hidden_layers=4), "block_types")).layers()
    assert [isinstance(b.mixer, Mixer) for b in layers] == [True, True, False, True]
    attention = layers[2].mixer
    assert isinstance(attention, Attention)
    assert (attention.window, attention.rotary_dim, attention.rotary_form) == (2048, 64, "half-own")


def test_the_networks_are_half_as_wide_as_said() -> None:
    """``intermediate_size`` is that of gate and up together."""
    (mlp, *_) = (b.mlp for b in read_architecture(small()).layers())
    assert isinstance(mlp, Mlp)
    assert mlp.width == 3072


def test_recomputed_layers_leave_their_graphs() -> None:
    """The state that each module keeps holds what made it, until the next forward: more rests than without recompute."""
    plans = added_plans()
    names = ("recurrent_gemma added, sdpa, none, bf16-pure", "recurrent_gemma added, sdpa, full, bf16-pure")
    plain, recomputed = (next(iter(predicted(plans[name]).values())) for name in names)
    left = recomputed["init"] - plain["init"]
    assert left == recomputed["optimizer"] - plain["optimizer"]
    assert left > 2 * 128 * 1024 * 2 * 4  # of two layers, each token's state and decay in fp32 at least


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"block_types": ["recurrent", "mamba"]}, "block_types"),
        ({"hidden_activation": "silu"}, "hidden_activation"),
        ({"lru_width": 1001}, "lru_width"),
    ],
)
def test_what_has_no_model_is_refused(keys: dict[str, Any], where: str) -> None:
    """Each is an error at its key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(small(**keys), strict=True)
    assert caught.value.key == where
