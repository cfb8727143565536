"""DeBERTa's first version: what sets it apart, and what is refused where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from memcheck.families.registry import read_architecture
from memcheck.models.parameters import count_parameters
from memcheck.models.reader import ArchitectureError
from memcheck.models.types import Attention


def small(kind: str, **keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()[kind]["config"]
    return {**config, **keys}


def test_parameters_are_those_of_the_class() -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small("deberta"), strict=True)) == added()["deberta"]["parameters"]


def test_debertas_first_version_has_one_matrix_and_two_biases() -> None:
    """Queries and values have biases of their own, keys none; only one of the positions' matrices has one."""
    (mixer,) = (b.mixer for b, _ in read_architecture(small("deberta")).blocks)
    assert isinstance(mixer, Attention)
    assert [(t.name.removeprefix("attention.self."), t.shape) for t in mixer.tensors[:6]] == [
        ("in_proj.weight", (2304, 768)),
        ("q_bias", (768,)),
        ("v_bias", (768,)),
        ("pos_proj.weight", (768, 768)),
        ("pos_q_proj.weight", (768, 768)),
        ("pos_q_proj.bias", (768,)),
    ]


@pytest.mark.parametrize("keys", [{"talking_head": True}, {"pooler_hidden_size": 512}, {"pos_att_type": ["p2p"]}])
def test_debertas_first_version_refuses_what_it_has_no_model_of(keys: dict[str, Any]) -> None:
    """At the key that asks for it."""
    with pytest.raises(ArchitectureError) as error:
        read_architecture(small("deberta", **keys))
    assert error.value.key in keys
