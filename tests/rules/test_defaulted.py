"""A full GPU's finding names the default that decides much of what is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding


def finding(**changes: object) -> Finding:
    """The finding of gpt-oss-20b on 8 GPUs with four micro-batches."""
    training: dict[str, Any] = {
        "framework": "huggingface",
        "micro_batch_size": 1,
        "sequence_length": 4096,
        "gradient_accumulation_steps": 4,
        "activation_checkpointing": "full",
        "attention": "eager",
        "precision": "bf16-pure",
    }
    plan = {
        "memcheck": 1,
        "model": "gpt-oss-20b",
        "hardware": {"gpu": {"name": "lab", "memory_gib": 48}, "gpus_per_node": 8},
        "parallelism": {"zero_stage": 3, **changes},
        "training": training,
    }
    (result,), _ = check_file("plan.yaml", json.dumps(plan).encode(), Gate())
    (found,) = [each for each in result.findings if each.code == "MEM101"]
    return found


def test_the_default_is_named_with_its_effect() -> None:
    """Gradients that wait unsharded are most of it, and the plan passes without them."""
    message = finding().message
    assert "a default decides 34.34 GiB of it" in message
    assert "with `parallelism.gradient_sync: every` instead of `last` the plan needs 40.56 GiB" in message
    assert message.endswith("and passes")


def test_what_the_plan_says_is_no_default() -> None:
    """The same value, stated."""
    assert "a default decides" not in finding(gradient_sync="last").message


@pytest.mark.parametrize(("options", "named"), [({}, True), ({"prepare_model_for_kbit_training": True}, False)])
def test_the_casts_of_4_bit_training_are_such_a_default(options: dict[str, object], named: bool) -> None:
    """Unless the plan's options say that they are made."""
    plan = {
        "memcheck": 1,
        "model": "mistral-7b-v0.1",
        "hardware": {"gpu": "a100-80gb"},
        "training": {
            "framework": "huggingface",
            "method": "qlora",
            "micro_batch_size": 32,
            "sequence_length": 4096,
            "activation_checkpointing": "full",
            "attention": "flash",
            "loss": "fused-linear",
            "options": options,
        },
    }
    (result,), _ = check_file("plan.yaml", json.dumps(plan).encode(), Gate())
    message = next(each.message for each in result.findings if each.code in ("MEM101", "MEM102"))
    assert ("`training.options.prepare_model_for_kbit_training: false` instead of `true`" in message) is named
