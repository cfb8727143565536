"""Zamba 2's configuration: low-rank pairs of the layers that it names, whether the model has them or not."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.families.registry import read_architecture
from memcheck.models.parameters import count_parameters
from memcheck.models.reader import ArchitectureError

KEYS: dict[str, Any] = {
    "model_type": "zamba2",
    "vocab_size": 32000,
    "hidden_size": 2560,
    "num_hidden_layers": 7,
    "layers_block_type": ["linear_attention"] * 6 + ["hybrid"],
    "n_mamba_heads": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "intermediate_size": 10240,
}


@pytest.mark.parametrize(("named", "parameters"), [(None, 539_752_488), ([6], 539_752_488)])
def test_a_pair_for_each_hybrid_layer(named: list[int] | None, parameters: int) -> None:
    """The class derives ``hybrid_layer_ids`` of the kinds of layers, where the configuration does not state it."""
    stated = {} if named is None else {"hybrid_layer_ids": named}
    assert count_parameters(read_architecture({**KEYS, **stated})) == parameters


def test_pairs_of_layers_that_a_cut_model_lost_rest() -> None:
    """A model cut short keeps the pairs of all the layers that it names (563,345,448 parameters on the meta device)."""
    cut = read_architecture({**KEYS, "hybrid_layer_ids": [6, 12, 18, 24, 30, 36, 42, 47, 51]})
    assert count_parameters(cut) == 563_345_448
    idle = [t for block in cut.layers() for t in block.extra_tensors if t.fixed]
    assert len(idle) == 16
    assert sum(t.count for t in idle) == 563_345_448 - 539_752_488


def test_a_hybrid_layer_that_is_not_named_has_no_pair() -> None:
    """The class looks its pair up by the layer, and fails."""
    with pytest.raises(ArchitectureError, match="layer 6 is a hybrid, and is not named"):
        read_architecture({**KEYS, "hybrid_layer_ids": [5]})
