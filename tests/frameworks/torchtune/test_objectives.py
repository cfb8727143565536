"""Second models of torchtune's recipes where FSDP2 shards them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.score import answer


def rests(gpus: int, vocabulary: int = 128256, **training: Any) -> int:
    """What a recipe's states take at rest on one of so many GPUs."""
    plan = {
        "memcheck": 1,
        "model": {"name": "llama-3.2-1b", "overrides": {"num_hidden_layers": 4, "vocab_size": vocabulary}},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": gpus},
        "parallelism": {"zero_stage": 3 if gpus > 1 else 0},
        "training": {
            "framework": "torchtune",
            "micro_batch_size": 1,
            "sequence_length": 512,
            "method": "lora",
            "lora": {"rank": 8, "target_modules": ["q_proj"]},
            **training,
        },
    }
    init = answer(plan).ranks[0].instants[0]
    assert init.name == "init"
    return init.allocated_bytes


def test_a_teacher_keeps_its_ends_gathered() -> None:
    """A forward without a backward leaves embedding, norm and head whole on every rank, beside all shards."""
    teacher = {"model": {"name": "llama-3.1-8b", "overrides": {"num_hidden_layers": 4}}}
    with_one = rests(8, objective="distill", teacher=teacher) - rests(8, loss="chunked")
    ends = 2 * 128256 * 4096 * 2
    layers = 4 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) * 2
    assert with_one == pytest.approx(ends + (ends + layers) / 8, rel=0.03)


def test_logits_of_the_reference_are_there_between_steps() -> None:
    """The recipes of adapters hold them, in fp32, until the next micro-batch has been scored; full training's do not."""
    held = rests(1, objective="dpo") - rests(1, loss="standard")
    assert held == pytest.approx(2 * 512 * 128256 * 4, rel=0.001)
