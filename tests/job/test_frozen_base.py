"""What a frozen base rests in, where the plan leaves it to whoever loads the model."""

from __future__ import annotations

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.unsloth.profile import DYNAMIC
from memcheck.job.adapters import DIED_AT, DIED_AT_4_BITS
from memcheck.job.resolve import resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
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


@pytest.mark.parametrize(
    ("base", "version", "trainer", "model", "share"),
    [
        ("int8", "4.30", None, "llama-7b", DIED_AT["int8"]),
        ("nf4", "4.36.2", None, "llama-7b", DIED_AT_4_BITS),
        ("nf4", "4.37", None, "llama-7b", 0.0),
        ("nf4", None, None, "llama-7b", 0.0),
        ("nf4", None, {"name": "unsloth"}, "unsloth/Llama-3.2-3B-Instruct", DYNAMIC),
        ("nf4", None, {"name": "unsloth", "version": "2024.9"}, "unsloth/Llama-3.2-3B-Instruct", 0.0),
        ("nf4", None, {"name": "unsloth"}, "unsloth/Llama-3.2-3B-Instruct-bnb-4bit", 0.0),
    ],
)
def test_what_no_plan_states_of_a_quantised_base_widens_the_interval(
    base: str, version: str | None, trainer: object, model: str, share: float
) -> None:
    """Releases that nobody read, and checkpoints with matrices in 16 bits: upwards alone, and an assumption says so."""
    training = {"method": "lora", "base": base, "micro_batch_size": 1, "sequence_length": 512, "trainer": trainer}
    training["framework_version"] = version
    plan = {"memcheck": 1, "model": model, "hardware": {"gpu": "h100-80gb"}, "training": training}
    found = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    assert isinstance(found.job, TrainingJob)
    assert found.job.unread_share == share
    assert bool(share) == any(each.key == "training.base" for each in found.assumptions)
    wide, usual = (estimate(each, found.gpu) for each in (found.job, found.job._replace(unread_share=0.0)))
    assert (wide.needed_interval_bytes[1] > usual.needed_interval_bytes[1]) == bool(share)
    assert wide.needed_interval_bytes[0] == usual.needed_interval_bytes[0]
    assert wide.needed_bytes == usual.needed_bytes
