"""Phi 3.5 MoE's router, noise and stream, held against steps traced with torch 2.13 and transformers 5.24."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.torch.test_towers import MIB, priced

PHIMOE: dict[str, Any] = {
    "model_type": "phimoe",
    "vocab_size": 2000,
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1024,
    "num_local_experts": 16,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 2048,
    "attention_bias": True,
    "lm_head_bias": True,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
NARROW = {"recipe": "bf16-mixed", "params": "bf16"}
FSDP1 = {"framework": "huggingface", "precision": "bf16-mixed", "options": {"fsdp_version": 1}}
FULL = {"activation_checkpointing": "full"}
LORA = {"method": "lora", "lora": {"rank": 8, "target_modules": ["q_proj", "v_proj"], "dtype": "fp32"}}
ROWS: dict[str, tuple[dict[str, Any], tuple[float, float, float, float]]] = {
    "bf16": ({}, (217.711, 252.658, 268.251, 204.946)),
    "noise": ({}, (225.711, 260.658, 276.251, 204.946)),
    "noise, autocast, recomputed": ({"precision": "bf16-mixed", **FULL}, (296.193, 267.057, 494.526, 409.856)),
    "autocast over bf16": ({"precision": NARROW}, (256.047, 274.998, 286.591, 204.946)),
    "autocast over bf16, recomputed": ({"precision": NARROW, **FULL}, (156.951, 157.862, 259.333, 204.946)),
    "FSDP1": (FSDP1, (258.003, 227.681, 320.043, 102.500)),
    "FSDP1, recomputed": ({**FSDP1, **FULL}, (158.907, 110.545, 260.479, 102.500)),
    "adapters, recomputed": (
        {"framework": "huggingface", "precision": NARROW, **FULL, **LORA},
        (157.104, 156.014, 182.748, 102.697),
    ),
}
"""MiB at forward, loss, backward and optimizer."""


@pytest.mark.parametrize("name", ROWS)
def test_traced_steps(name: str) -> None:
    """Every instant is within 0.1 %: experts return fp32 sums to the stream where a LayerNorm hands them fp32 rows."""
    training, seen = ROWS[name]
    sharded = name.startswith("FSDP1")
    hardware = {"gpu": {"name": "lab", "memory_gib": 100000}, "gpus_per_node": 4 if sharded else 1}
    found = priced(
        {**PHIMOE, "input_jitter_noise": 0.01 if name.startswith("noise") else 0.0},
        {
            "micro_batch_size": 2,
            "sequences": "packed",
            "precision": "bf16-pure",
            "optimizer": "sgd",
            "attention": "sdpa",
            "activation_checkpointing": "none",
            "initialization": "device",
            "checkpoint": "none",
            **training,
        },
        hardware=hardware,
        parallelism={"zero_stage": 3} if sharded else {},
    )
    instants = {instant.name: instant.allocated_bytes / MIB for instant in found.ranks[0].instants}
    for phase, mib in zip(("forward", "loss", "backward", "optimizer"), seen, strict=True):
        assert instants[phase] == pytest.approx(mib, rel=0.001), phase
