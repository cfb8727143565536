"""ZAYA's configuration: what decides its layers, and what is refused where it stands."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.added import added, added_plans
from memcheck.errors import UnsupportedError
from memcheck.families.architecture import read_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.models.errors import ArchitectureError
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Attention, Handed
from memcheck.plan.load import load_documents
from memcheck.plan.read import read_plan
from tests.models.configs import without


def small(**keys: Any) -> dict[str, Any]:
    """The small model's config.json with other values."""
    config: dict[str, Any] = added()["zaya"]["config"]
    return {**config, **keys}


def test_parameters_are_those_of_the_class() -> None:
    """Every tensor of the class on the meta device is counted."""
    assert count_parameters(read_architecture(small())) == added()["zaya"]["parameters"]


def test_the_router_of_each_layer_but_the_first_is_given_a_state() -> None:
    """It has a vector for it, and the last layer's own state is nobody's."""
    layers = read_architecture(small()).layers()
    assert [b.handed for b in layers] == [
        Handed(256, first=True, last=False),
        Handed(256, first=False, last=False),
        Handed(256, first=False, last=True),
    ]
    scales = [any("router_states_scale" in t.name for t in b.mlp.tensors) for b in layers if b.mlp is not None]
    assert scales == [False, True, True]


def test_windowed_layers_are_named() -> None:
    """By default every layer sees all; half of each head is turned."""
    mixers = [b.mixer for b in read_architecture(small()).layers()]
    assert [m.window for m in mixers if isinstance(m, Attention)] == [None, 256, None]
    plain = read_architecture(without(small(), "layer_types", "sliding_window")).layers()
    assert {m.mixer.window for m in plain if isinstance(m.mixer, Attention)} == {None}
    assert {m.mixer.rotary_dim for m in plain if isinstance(m.mixer, Attention)} == {64}


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        ({"layer_types": ["hybrid"]}, "layer_types"),
        ({"layer_types": ["hybrid", "full_attention", "hybrid"]}, "layer_types"),
        ({"sliding_window": None}, "sliding_window"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"rope_parameters": {"hybrid": {"partial_rotary_factor": 2}}}, "rope_parameters"),
        ({"rope_parameters": {"hybrid": {"partial_rotary_factor": 0.25}}}, "rope_parameters"),
        ({"num_shared_experts": 1}, "num_shared_experts"),
    ],
)
def test_what_the_class_does_not_build_is_refused(keys: dict[str, Any], where: str) -> None:
    """Each is an error at its key."""
    with pytest.raises(ArchitectureError) as caught:
        read_architecture(small(**keys), strict=True)
    assert caught.value.key == where


def test_reentrant_checkpoints_are_refused() -> None:
    """The router's state goes around the stream, which such a checkpoint hands on alone."""
    plan: dict[str, Any] = added_plans()["zaya added, sdpa, full, bf16-pure"]
    recompute = {"mode": "full", "reentrant": True}
    training = {**plan["training"], "activation_checkpointing": recompute}
    (document,) = load_documents("plan.json", json.dumps({**plan, "training": training}).encode())
    read, findings = read_plan(document)
    assert not findings
    assert read is not None
    resolved = resolve(read, FRAMEWORKS, base_dir=".")
    with pytest.raises(UnsupportedError, match="reentrant") as caught:
        estimate(resolved.job, resolved.gpu, resolved.overhead)
    assert caught.value.pointer == "/training/activation_checkpointing/reentrant"
