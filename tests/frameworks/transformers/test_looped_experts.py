"""Experts that a class runs one after the other, held against traced steps of DBRX and Step 3.7.

A trace needs to know each token's experts: they were set, as many tokens for each.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.torch.test_towers import MIB, priced

DBRX: dict[str, Any] = {
    "model_type": "dbrx",
    "d_model": 512,
    "n_heads": 8,
    "n_layers": 3,
    "max_seq_len": 2048,
    "vocab_size": 8000,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0},
    "ffn_config": {"ffn_hidden_size": 768, "moe_num_experts": 4, "moe_top_k": 2, "ffn_act_fn": {"name": "silu"}},
}
LORA = {"method": "lora", "lora": {"rank": 8, "target_modules": "all-linear", "dtype": "fp32"}}
ROWS: dict[str, tuple[dict[str, Any], tuple[float, float, float, float]]] = {
    "whole": ({"micro_batch_size": 2}, (205.001, 266.047, 290.448, 231.995)),
    "recomputed": ({"activation_checkpointing": "full"}, (143.165, 171.78, 198.182, 231.989)),
    "autocast": ({"precision": "bf16-mixed"}, (350.082, 388.763, 400.185, 463.957)),
    "adapters": ({"activation_checkpointing": "full", **LORA}, (53.051, 79.766, 91.579, 47.707)),
}
"""MiB at forward, loss, backward and optimizer (torch 2.13, transformers 5.23)."""


@pytest.mark.parametrize("name", ROWS)
def test_traced_steps(name: str) -> None:
    """Every instant is within 0.3 %: copies of matrices under autocast, whole gradients of a stack for each expert."""
    training, seen = ROWS[name]
    found = priced(
        DBRX,
        {
            "sequence_length": 400,
            "precision": "bf16-pure",
            "optimizer": {"name": "adamw", "implementation": "foreach"},
            "attention": "sdpa",
            "activation_checkpointing": "none",
            "clip_grad_norm": False,
            "loss": {"kind": "standard", "keep_logits": True},
            "initialization": "device",
            "checkpoint": "none",
            **training,
        },
    )
    instants = {instant.name: instant.allocated_bytes / MIB for instant in found.ranks[0].instants}
    for phase, mib in zip(("forward", "loss", "backward", "optimizer"), seen, strict=True):
        assert instants[phase] == pytest.approx(mib, rel=0.003), phase
