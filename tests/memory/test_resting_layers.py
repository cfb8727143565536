"""Layers of a language model that rest in a step without pictures."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan


def test_resting_layers_hold_their_weights() -> None:
    """The language model alone keeps the layers that would read pictures, frozen and without a state."""
    training = {"framework": "pytorch", "micro_batch_size": 1, "sequence_length": 512, "precision": "bf16-pure"}
    model = {"name": "llama-3.2-11b-vision", "part": "language"}
    plan = {
        "memcheck": 1,
        "model": model,
        "hardware": {"gpu": {"name": "lab", "memory_gib": 1000}},
        "training": {**training, "method": "lora", "lora": {"rank": 16}},
    }
    found = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    assert isinstance(found.gpu, Gpu)
    held = estimate(found.job, found.gpu).components_bytes["parameters"]
    assert held == pytest.approx(2 * 9_775_192_080, rel=1e-5)


def test_layers_frozen_by_number_are_refused_where_some_rest() -> None:
    """Their numbers count those that read pictures, which no step of text runs."""
    training = {"framework": "pytorch", "micro_batch_size": 1, "sequence_length": 512, "precision": "bf16-pure"}
    plan = {
        "memcheck": 1,
        "model": {"name": "llama-3.2-11b-vision", "part": "language"},
        "hardware": {"gpu": {"name": "lab", "memory_gib": 1000}},
        "training": {**training, "freeze": ["layers:0-4"]},
    }
    found = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    assert isinstance(found.gpu, Gpu)
    with pytest.raises(UnsupportedError) as caught:
        estimate(found.job, found.gpu)
    assert caught.value.pointer == "/training/freeze"
