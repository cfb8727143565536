"""Quantization-aware training as Axolotl prepares it: whole steps, and the jobs in which it has no model."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.score import answer
from memcheck.errors import UnsupportedError

OPTIONS = {"quantizer": "int8-int4", "groupsize": 32}
TRAINING: dict[str, Any] = {
    "framework": "huggingface",
    "micro_batch_size": 2,
    "sequence_length": 1024,
    "precision": "bf16-pure",
    "optimizer": "adamw",
    "attention": "sdpa",
    "options": OPTIONS,
}
FSDP2 = {"zero_stage": 3}
ONE_ROOT = {**OPTIONS, "accelerate_version": "1.13"}
CASTS = {"recipe": "bf16-mixed", "params": "bf16"}
TRACED: list[tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]] = [
    ({}, {}, (2671218176, 7488608768, 14863548416, 15380463104, 3561503744)),
    ({"activation_checkpointing": "full"}, {}, (2671218176, 3057364480, 10241471488, 10758386176, 3561503744)),
    ({"precision": CASTS}, {}, (2671218176, 7488608768, 14863548416, 15380463104, 3561503744)),
    (
        {"activation_checkpointing": "full", "precision": {"recipe": "bf16-mixed"}, "options": ONE_ROOT},
        FSDP2,
        (2671218176, 3973844480, 10888455168, 11405369856, 3561504768),
    ),
]
"""Steps of Llama 3.2 1B of three layers with torchao 0.18's layers, traced with torch 2.13.0 and transformers 5.23.0 on
fake tensors: what is alive after init, in forward, loss and backward, and in the optimizer's step. Its tied head is a
quantised product, too.
"""


def plan(parallelism: dict[str, Any] | None = None, model: str = "llama-3.2-1b", **training: Any) -> dict[str, Any]:
    """A small job of it."""
    return {
        "memcheck": 1,
        "model": {"name": model, "overrides": {"num_hidden_layers": 3}},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 2 if parallelism else 1},
        "parallelism": parallelism or {},
        "training": {**TRAINING, **training},
    }


@pytest.mark.parametrize(("training", "parallelism", "traced"), TRACED)
def test_a_step_is_torchaos(training: dict[str, Any], parallelism: dict[str, Any], traced: tuple[int, ...]) -> None:
    """Every instant within a half per mille of the traced one."""
    instants = answer(plan(parallelism, **training)).ranks[0].instants
    assert [each.allocated_bytes for each in instants] == pytest.approx(traced, rel=5e-4)


@pytest.mark.parametrize(
    ("parallelism", "training", "said"),
    [
        ({}, {"method": "lora", "lora": {"rank": 8}}, "with adapters"),
        ({}, {"compile": True}, "compiled"),
        ({}, {"precision": "fp32"}, "fp32"),
        ({"tensor": 2}, {}, "divided"),
        ({"zero_stage": 2}, {}, "ZeRO"),
        ({}, {"objective": "dpo"}, "objective dpo"),
        ({}, {"options": {**OPTIONS, "groupsize": 96}}, "groups of 96"),
    ],
)
def test_where_it_has_no_model(parallelism: dict[str, Any], training: dict[str, Any], said: str) -> None:
    """Each by its name, at the option or the key that is in the way."""
    with pytest.raises(UnsupportedError, match=said):
        answer(plan(parallelism, **training))


def test_layers_other_than_plain_ones_have_none() -> None:
    """A mixture's experts are no linear layers, and its router may be one."""
    with pytest.raises(UnsupportedError, match="feed-forward"):
        answer(plan(model="qwen3-30b-a3b"))
