"""ESM C and UltraBERT, encoders of Llama's layers: what sets each apart, and what is refused where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from memcheck.families.architecture import read_architecture
from memcheck.models.errors import ArchitectureError
from memcheck.models.module_paths import linear_layers
from memcheck.models.parameters import count_parameters, head_width
from memcheck.models.types import Attention
from tests.models.configs import without


def small(kind: str, **keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()[kind]["config"]
    return {**config, **keys}


@pytest.mark.parametrize("kind", ["esmc", "ultrabert"])
def test_parameters_are_those_of_the_class(kind: str) -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small(kind), strict=True)) == added()[kind]["parameters"]


def test_esmc_norms_whole_queries_and_scales_its_sums() -> None:
    """Both norms are as wide as the model and have no bias; nothing ties the head."""
    a = read_architecture(small("esmc", tie_word_embeddings=True))
    ((block, _),) = a.blocks
    assert isinstance(block.mixer, Attention)
    assert [n and (n.kind, n.size, n.bias) for n in (block.mixer.query_norm, block.mixer.key_norm)] == [
        ("layernorm", 1024, False)
    ] * 2
    assert (block.residual_scale, block.mixer.bidirectional, a.tie_word_embeddings) == (True, True, False)


def test_ultrabert_windows_two_of_three_layers() -> None:
    """A window reaches one token further than is said; published files name the window of each layer instead."""
    plain = without(small("ultrabert"), "layer_types")
    named = without({**plain, "attention_windows": [0, 64, 64]}, "sliding_window")
    spans = [
        [b.mixer.window for b in read_architecture(config).layers() if isinstance(b.mixer, Attention)]
        for config in (plain, named)
    ]
    assert spans == [[257, 257, None], [None, 65, 65]]


def test_ultrabert_has_two_layers_in_front_of_its_head() -> None:
    """Adapters of all linear layers reach both; what the head reads is as wide as the model."""
    a = read_architecture(small("ultrabert"))
    assert [t.shape for t in a.head_tensors] == [(512, 1024), (1024, 512)]
    assert head_width(a) == 1024
    assert {"head.linear1", "head.linear2"} <= {m.path for m in linear_layers(a)}


@pytest.mark.parametrize(
    ("kind", "keys", "where"),
    [
        ("esmc", {"num_key_value_heads": 4}, "num_key_value_heads"),
        ("ultrabert", {"attention_windows": [64]}, "attention_windows"),
        ("ultrabert", {"layer_types": ["linear_attention"] * 3}, "layer_types"),
    ],
)
def test_what_the_class_does_not_build_is_refused(kind: str, keys: dict[str, Any], where: str) -> None:
    """Each is an error at its key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(small(kind, **keys), strict=True)
    assert caught.value.key == where
