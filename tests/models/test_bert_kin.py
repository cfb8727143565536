"""DeBERTa, RemBERT, RoFormer, BertGeneration and CTRL: what sets each apart, and what is refused where it stands."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from memcheck.families.architecture import read_architecture
from memcheck.models.errors import ArchitectureError
from memcheck.models.parameters import count_parameters, outer_tensors
from memcheck.models.types import Attention

KINDS = ("bert-generation", "ctrl", "deberta", "rembert", "roformer")


def small(kind: str, **keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()[kind]["config"]
    return {**config, **keys}


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_are_those_of_the_class(kind: str) -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small(kind), strict=True)) == added()[kind]["parameters"]


def test_rembert_has_narrow_tables_and_a_wide_head_of_its_own() -> None:
    """Tables of 256, layers of 768, and a head of 1,024 that no flag ties."""
    shapes = {t.name: t.shape for t in outer_tensors(read_architecture(small("rembert", tie_word_embeddings=True)))}
    assert shapes["rembert.embeddings.word_embeddings.weight"] == (2000, 256)
    assert shapes["rembert.encoder.embedding_hidden_mapping_in.weight"] == (768, 256)
    assert shapes["cls.predictions.dense.weight"] == (1024, 768)
    assert shapes["cls.predictions.decoder.weight"] == (2000, 1024)


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


def test_roformer_turns_pairs_by_a_table_without_a_gradient() -> None:
    """The table of sines and cosines is as wide as a head and is no table of positions."""
    a = read_architecture(small("roformer"))
    (table,) = (t for t in a.extra_tensors if t.fixed)
    assert (table.shape, a.learned_positions) == ((2048, 64), 0)
    (mixer,) = (b.mixer for b, _ in a.blocks)
    assert isinstance(mixer, Attention)
    assert (mixer.rotary_form, mixer.sdpa) == ("pairs-stacked", False)


@pytest.mark.parametrize("decodes", [False, True])
def test_bert_generation_sees_what_its_config_says(decodes: bool) -> None:
    """As a decoder, each token sees those before it alone."""
    (mixer,) = (b.mixer for b, _ in read_architecture(small("bert-generation", is_decoder=decodes)).blocks)
    assert isinstance(mixer, Attention)
    assert mixer.bidirectional is not decodes


@pytest.mark.parametrize(
    ("kind", "keys", "where"),
    [
        ("bert-generation", {"add_cross_attention": True}, "add_cross_attention"),
        ("roformer", {"rotary_value": True}, "rotary_value"),
        ("roformer", {"is_decoder": True}, "is_decoder"),
        ("rembert", {"input_embedding_size": 768}, "input_embedding_size"),
        ("ctrl", {"n_ctx": 256}, "n_ctx"),
    ],
)
def test_what_has_no_model_is_refused(kind: str, keys: dict[str, Any], where: str) -> None:
    """Each is an error at its key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(small(kind, **keys), strict=True)
    assert caught.value.key == where
