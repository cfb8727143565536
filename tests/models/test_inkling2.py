"""Inkling 2's configuration: what decides its layers, and what is refused where it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.added import added, added_plans
from benchmarks.drawn import predicted
from memcheck.errors import UnsupportedError
from memcheck.families.architecture import read_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.models.errors import ArchitectureError
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture, Attention, Sources
from memcheck.plan.load import load_documents
from memcheck.plan.read import read_plan
from tests.models.configs import without


def small(**keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()["inkling2_text"]["config"]
    return {**config, **keys}


def sources(a: Architecture) -> list[Sources | None]:
    """What each layer is given."""
    return [block.sources for block in a.layers()]


def test_parameters_are_those_of_the_class() -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small())) == added()["inkling2_text"]["parameters"]


def test_streams_are_added_every_so_many_layers() -> None:
    """The stream in front of the first of every so many layers becomes one of those that all behind it weigh."""
    a = read_architecture(small())
    assert sources(a) == [
        Sources(0, first=False, adds=True, last=False),
        Sources(1, first=True, adds=False, last=False),
        Sources(1, first=False, adds=True, last=False),
        Sources(2, first=True, adds=False, last=False),
        Sources(2, first=False, adds=True, last=True),
    ]
    assert a.last_sources == 3


def test_layers_that_see_every_token_convolve_by_what_it_says() -> None:
    """Keys and values of a full layer have inputs, norms and weights of their own, which a query each makes."""
    layers = read_architecture(small()).layers()
    full, windowed = layers[2], layers[1]
    assert isinstance(full.mixer, Attention)
    assert isinstance(windowed.mixer, Attention)
    names = {t.name: t.shape for t in full.extra_tensors}
    assert names["attention_input.query"] == (3, 1024)
    assert {t.name: t.shape for t in windowed.extra_tensors}["attention_input.query"] == (1024,)
    assert "k_input_layernorm.weight" in names
    assert any("weight_proj" in t.name for t in full.mixer.tensors)
    assert not any("weight_proj" in t.name for t in windowed.mixer.tensors)


def test_by_default_every_sixth_layer_sees_all() -> None:
    """Without ``layer_types`` the layers in between have a window."""
    layers = read_architecture(without(small(num_hidden_layers=6), "layer_types")).layers()
    windows = [b.mixer.window for b in layers if isinstance(b.mixer, Attention)]
    assert windows == [256] * 5 + [None]


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"layer_types": ["hybrid"]}, "layer_types"),
        ({"layer_types": ["hybrid"] * 4 + ["full_attention"]}, "layer_types"),
        ({"swa_num_key_value_heads": 3}, "swa_num_key_value_heads"),
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"n_layers_per_attn_res_block": 0}, "n_layers_per_attn_res_block"),
        ({"n_shared_experts": 2}, "n_shared_experts"),
    ],
)
def test_what_the_class_does_not_build_is_refused(keys: dict[str, Any], where: str) -> None:
    """Each is an error at its key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(small(**keys), strict=True)
    assert caught.value.key == where


def plan(**training: Any) -> dict[str, Any]:
    """A plan of the small model."""
    found: dict[str, Any] = added_plans()["inkling2_text added, eager, full, bf16-pure"]
    return {**found, "training": {**found["training"], **training}}


def test_a_gradient_of_streams_waits_for_layers_further_down() -> None:
    """More streams before the last layer are more bytes in its backward."""
    few, many = plan(), plan()
    few["model"] = {"architecture": small(n_layers_per_attn_res_block=5)}
    (one,), (other,) = predicted(few).values(), predicted(many).values()
    assert one["backward"] < other["backward"]


@pytest.mark.parametrize("training", [{"freeze": ["layers:0-1"]}])
def test_layers_frozen_by_number_are_refused(training: dict[str, Any]) -> None:
    """Their streams are read by layers that are trained."""
    (document,) = load_documents("plan.json", json.dumps(plan(**training)).encode())
    read, findings = read_plan(document)
    assert not findings
    assert read is not None
    resolved = resolve(read, FRAMEWORKS, base_dir=".")
    with pytest.raises(UnsupportedError):
        estimate(resolved.job, resolved.gpu, resolved.overhead)
