"""Megatron's layers have tensors for each expert: a config with a billion of them must not hang the gate."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import find_model
from memcheck.errors import UnsupportedError
from memcheck.families.registry import read_architecture
from memcheck.frameworks.megatron.tensors import MAX_EXPERTS, whole_block
from memcheck.models.types import Block, Moe


def mixture(experts: int) -> Block:
    """Mixtral's layer with so many experts."""
    block = read_architecture(find_model("mixtral-8x7b").config).blocks[0][0]
    assert isinstance(block.mlp, Moe)
    return block._replace(mlp=block.mlp._replace(experts=experts))


def test_more_than_any_model_has_are_refused() -> None:
    """At once, and where the model is named."""
    with pytest.raises(UnsupportedError, match="experts have no memory model") as found:
        whole_block(mixture(2**31), 4096)
    assert found.value.pointer == "/model"


def test_the_largest_number_is_listed() -> None:
    """A router, and two matrices for each."""
    names = [each.name for each in whole_block(mixture(MAX_EXPERTS), 4096)]
    assert sum("experts.linear_fc1" in name for name in names) == MAX_EXPERTS
