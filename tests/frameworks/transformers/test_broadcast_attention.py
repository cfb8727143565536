"""Falcon's multi-query attention through ``scaled_dot_product_attention``: no fused kernel broadcasts heads."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan

TRACED = {
    ("bf16-pure", 2, 1024): (427121152, 408346624, 493979136),
    ("bf16-pure", 1, 512): (108044800, 112390144, 123018752),
    ("bf16-mixed", 2, 1024): (512743936, 500219904, 581651968),
    ("fp16-mixed", 3, 1000): (684929024, 666424832, 777954816),
    ("fp32", 2, 1024): (536467968, 528384000, 618286592),
}
"""Bytes at the highest moment of forward, loss and backward, by recipe, sequences and their length: traced with
torch 2.13.0 and transformers 5.23.0, falcon-7b with three layers of 8 x 64 channels."""


@pytest.mark.parametrize("case", TRACED, ids=lambda case: f"{case[0]}-{case[1]}x{case[2]}")
def test_half_precision_is_computed_in_fp32(case: tuple[str, int, int]) -> None:
    """Every moment is within 0.1 % of the traced one: scores, weights and every head's keys are fp32 inside."""
    recipe, batch, sequence = case
    overrides = {"num_hidden_layers": 3, "hidden_size": 512, "num_attention_heads": 8, "vocab_size": 2000}
    plan: dict[str, Any] = {
        "memcheck": 1,
        "model": {"name": "falcon-7b", "overrides": overrides},
        "hardware": {"gpu": {"name": "any", "memory_gib": 10000}},
        "training": {
            "framework": "pytorch",
            "torch_version": "2.13",
            "micro_batch_size": batch,
            "sequence_length": sequence,
            "gradient_accumulation_steps": 1,
            "precision": recipe,
            "optimizer": "adamw",
            "attention": "sdpa",
        },
    }
    job = resolve(build_plan(plan), FRAMEWORKS, base_dir=".")
    found = estimate(job.job, job.gpu, job.overhead)
    moments = {instant.name: instant.allocated_bytes for instant in found.ranks[0].instants}
    for name, truth in zip(("forward", "loss", "backward"), TRACED[case], strict=True):
        assert abs(moments[name] / truth - 1) < 0.001, name
