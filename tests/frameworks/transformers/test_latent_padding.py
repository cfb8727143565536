"""Padded rows of latent attention, held against traced steps (torch 2.13, transformers 5.23, peft 0.21)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.torch.test_towers import MIB, priced

DENSE: dict[str, Any] = {
    "vocab_size": 8000,
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "intermediate_size": 1024,
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
}
ROUTED: dict[str, Any] = {
    **DENSE,
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "deepseek_v2": ROUTED,
    "deepseek_v3": ROUTED,
    "glm4_moe_lite": {**ROUTED, "v_head_dim": 96},
    "minicpm3": DENSE,
    "youtu": {**DENSE, "tie_word_embeddings": True},
}
QUERIES = {"rank": 8, "target_modules": ["q_a_proj", "q_b_proj", "kv_b_proj", "o_proj"], "dtype": "fp32"}
ROWS: dict[tuple[str, str, str, bool], tuple[float, float, float, float]] = {
    ("deepseek_v2", "sdpa", "none", False): (184.699, 241.487, 265.888, 183.763),
    ("deepseek_v2", "eager", "none", False): (224.696, 281.178, 305.58, 183.763),
    ("deepseek_v3", "sdpa", "none", False): (184.72, 241.507, 265.909, 183.764),
    ("deepseek_v3", "sdpa", "full", False): (124.007, 177.154, 201.555, 183.764),
    ("deepseek_v3", "eager", "none", False): (224.716, 281.199, 305.6, 183.764),
    ("deepseek_v3", "sdpa", "full", True): (53.556, 103.964, 127.584, 38.593),
    ("glm4_moe_lite", "sdpa", "none", False): (189.876, 246.664, 271.065, 188.451),
    ("glm4_moe_lite", "eager", "none", False): (229.873, 286.355, 310.756, 188.451),
    ("minicpm3", "sdpa", "none", False): (131.447, 189.84, 213.46, 107.119),
    ("minicpm3", "eager", "none", False): (171.443, 229.531, 253.151, 107.119),
    ("youtu", "sdpa", "none", False): (131.446, 189.058, 213.459, 107.119),
    ("youtu", "eager", "none", False): (171.442, 228.749, 253.15, 107.119),
}
"""Attention, recompute and whether adapters are trained; MiB at forward, loss, backward and optimizer."""


@pytest.mark.parametrize("name", ROWS)
def test_traced_steps(name: tuple[str, str, str, bool]) -> None:
    """Every instant is within 0.1 %: each layer keeps a copy of the mask of every row, and the model the mask."""
    kind, attention, recompute, adapts = name
    found = priced(
        {"model_type": kind, **MODELS[kind]},
        {
            "micro_batch_size": 2,
            "sequence_length": 400,
            "sequences": "padded",
            "precision": "bf16-pure",
            "optimizer": {"name": "adamw", "implementation": "foreach"},
            "attention": attention,
            "activation_checkpointing": recompute,
            "clip_grad_norm": False,
            "loss": {"kind": "standard", "keep_logits": True},
            "initialization": "device",
            "checkpoint": "none",
            **({"method": "lora", "lora": QUERIES} if adapts else {}),
        },
    )
    instants = {instant.name: instant.allocated_bytes / MIB for instant in found.ranks[0].instants}
    for phase, mib in zip(("forward", "loss", "backward", "optimizer"), ROWS[name], strict=True):
        assert instants[phase] == pytest.approx(mib, rel=0.001), phase
