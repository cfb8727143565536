"""Zamba's configuration, and how its mixer is refused where there is no model of it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from memcheck.errors import UnsupportedError
from memcheck.families.architecture import read_architecture
from memcheck.models.errors import ArchitectureError
from tests.frameworks.torch.load_and_save_plans import priced


def small(**keys: Any) -> dict[str, Any]:
    """The small model that is traced, with some keys changed."""
    config: dict[str, Any] = added()["zamba"]["config"]
    return {**config, **keys}


def test_one_block_is_shared_by_the_hybrid_layers() -> None:
    """The last of them holds its tensors, and each reads a copy of the embedding beside the stream."""
    found = read_architecture(small())
    hybrids = [block for block, n in found.blocks for _ in range(n) if block.in_turn]
    assert [(b.borrows, b.reused) for b in hybrids] == [(True, False), (False, True)]
    assert found.embedding_cloned


def test_layers_follow_from_a_period_where_they_are_not_listed() -> None:
    """Two of Mamba and a hybrid one come first; behind them every sixth from the fourth on."""
    config = small(num_hidden_layers=16)
    del config["layers_block_type"]
    found = read_architecture(config)
    kinds = [block.in_turn for block, n in found.blocks for _ in range(n)]
    assert [i for i, hybrid in enumerate(kinds) if hybrid] == [2, 7, 13]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n_mamba_heads": 3}, "no 3 equal heads"),
        ({"attention_hidden_size": 1024}, "other than 2048"),
        ({"hidden_mamba_act": "gelu"}, "only silu"),
        ({"layers_block_type": ["mamba", "mixed", "mamba", "hybrid"]}, "4 layers"),
    ],
)
def test_what_has_no_model_is_refused(keys: dict[str, Any], message: str) -> None:
    """At the key that asks for it."""
    with pytest.raises(ArchitectureError, match=message) as error:
        read_architecture(small(**keys))
    assert error.value.key in keys


def test_several_tensor_ranks_are_refused() -> None:
    """The mixer's own parameters have no rule by which they are cut."""
    training = {"framework": "pytorch", "precision": "bf16-pure", "sequence_length": 512}
    with pytest.raises(UnsupportedError, match="Zamba's mixer on several ranks"):
        priced(training, {"tensor": 2}, {"gpus_per_node": 2}, model="zamba-7b-v1")
