"""What a frozen base rests in, where the plan leaves it to whoever loads the model."""

from __future__ import annotations

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.plan.read import build_plan


@pytest.mark.parametrize(
    ("trainer", "params"),
    [
        (None, "bf16"),
        ("axolotl", "bf16"),
        ("trl", "fp32"),
        ({"name": "trl", "version": "1.16.0"}, "fp32"),
        ({"name": "trl", "version": "0.27"}, "fp32"),
        ({"name": "trl", "version": "0.26.2"}, "fp32"),
    ],
)
def test_trl_loads_in_fp32_unless_it_is_told(trainer: object, params: str) -> None:
    """By itself since 0.27, by the transformers of its time before; a stated dtype always counts."""
    training = {"method": "lora", "micro_batch_size": 1, "sequence_length": 512, "precision": {"recipe": "bf16-mixed"}}
    plan = {"memcheck": 1, "model": "llama-3.2-1b", "hardware": {"gpu": "h100-80gb"}, "training": training}
    if trainer is not None:
        training["trainer"] = trainer
    found = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    assert isinstance(found.job, TrainingJob)
    assert found.job.recipe.params == params
    assert any(a.key == "training.precision.params" and a.value == params for a in found.assumptions)
    training["precision"] = {"recipe": "bf16-mixed", "params": "bf16"}
    stated = resolve(build_plan(plan), FRAMEWORKS, base_dir=".").job
    assert isinstance(stated, TrainingJob)
    assert stated.recipe.params == "bf16"
