"""Counting defects seen in other calculators, each held here by the model it was seen on."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import find_model
from memcheck.families.registry import read_architecture
from memcheck.models.parameters import count_parameters, parameters_by_group
from memcheck.models.reader import ArchitectureError
from tests.models.configs import LLAMA, MIXTRAL, QWEN3_MOE, without


def count(name: str) -> int:
    """Parameters of a catalog model."""
    return count_parameters(read_architecture(find_model(name).config))


def test_untied_output_head_is_not_dropped() -> None:
    """Llama-2-7B is 6.738 B, not 6.607 B; Llama-3.1-8B is 8.030 B, not 7.505 B."""
    assert count("llama-2-7b") == 6_738_415_616
    assert count("llama-3.1-8b") == 8_030_261_248
    groups = parameters_by_group(read_architecture(find_model("llama-3.1-8b").config))
    assert groups["head"] == groups["embedding"] == 128_256 * 4096


def test_mixtral_is_not_read_as_dense() -> None:
    """A reader that only knows num_experts finds none in Mixtral's configuration and prices a 7 B dense model."""
    groups = parameters_by_group(read_architecture(find_model("mixtral-8x7b").config))
    assert groups["experts"] == 32 * 8 * 3 * 4096 * 14336
    assert "mlp" not in groups


def test_foreign_name_of_the_experts_is_an_error_with_the_right_one() -> None:
    """num_experts in a Mixtral configuration is refused with Mixtral's own key, never taken as zero experts."""
    config = {**without(MIXTRAL, "num_local_experts"), "num_experts": 8}
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(config)
    assert caught.value.key == "num_local_experts"
    assert "num_experts" in caught.value.message
    assert "num_local_experts" in caught.value.help


def test_experts_in_a_dense_family_are_an_error() -> None:
    """Experts in a Llama configuration would go unnoticed: they are refused instead."""
    with pytest.raises(ArchitectureError, match="num_local_experts") as caught:
        read_architecture({**LLAMA, "num_local_experts": 8})
    assert caught.value.key == "num_local_experts"


def test_memory_follows_total_not_active_parameters() -> None:
    """Qwen3-30B-A3B computes with 3.3 B parameters per token and holds 30.5 B."""
    architecture = read_architecture(find_model("qwen3-30b-a3b").config)
    assert count_parameters(architecture) == 30_532_122_624


def test_sparse_layers_are_not_priced_as_dense_ones() -> None:
    """A routed layer has no dense feed-forward network beside its experts, whatever intermediate_size says."""
    groups = parameters_by_group(read_architecture({**QWEN3_MOE, "intermediate_size": 4096}))
    assert "mlp" not in groups


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
def test_missing_dimension_is_never_a_default(key: str) -> None:
    """transformers has a number for every dimension; a configuration that lacks one is incomplete all the same."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(without(LLAMA, key))
    assert caught.value.key == key
