"""Experts that a class runs one after the other, held against traced steps of DBRX and LongCat Flash.

A trace needs to know each token's experts: they were set, as many tokens for each. Gradients that meet are added in
place, as torch adds them where no dispatch mode watches (``memcheck.verify.trace.tracer``).
"""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.autograd.context import Adapter
from memcheck.errors import UnsupportedError
from memcheck.families.registry import read_architecture
from memcheck.frameworks.stacked_adapters import expert_adapters
from memcheck.memory.inference import kv_bytes_per_sequence
from tests.frameworks.torch.test_towers import MIB, priced
from tests.models.test_step3p7 import TEXT

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
LONGCAT: dict[str, Any] = {
    "model_type": "longcat_flash",
    "vocab_size": 8000,
    "hidden_size": 512,
    "num_layers": 3,
    "num_attention_heads": 8,
    "max_position_embeddings": 2048,
    "ffn_hidden_size": 1024,
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32,
    "v_head_dim": 64,
    "moe_topk": 3,
    "n_routed_experts": 8,
    "zero_expert_num": 4,
    "expert_ffn_hidden_size": 256,
}
MODELS = {"longcat": LONGCAT}
QUERIES = {"rank": 8, "target_modules": ["q_a_proj", "q_b_proj", "kv_b_proj", "o_proj"], "dtype": "fp32"}
LORA = {"method": "lora", "lora": {"rank": 8, "target_modules": "all-linear", "dtype": "fp32"}}
ROWS: dict[str, tuple[dict[str, Any], tuple[float, float, float, float]]] = {
    "longcat": ({"micro_batch_size": 2}, (357.598, 415.515, 439.917, 334.387)),
    "longcat, recomputed": ({"activation_checkpointing": "full"}, (207.195, 233.959, 288.419, 334.381)),
    "longcat, autocast": ({"precision": "bf16-mixed"}, (537.488, 575.821, 587.838, 668.698)),
    "longcat, autocast, recomputed": (
        {"precision": "bf16-mixed", "activation_checkpointing": "full"},
        (435.304, 471.977, 567.217, 668.698),
    ),
    "longcat, adapters": ({"method": "lora", "lora": QUERIES}, (136.396, 164.959, 176.772, 70.532)),
    "longcat, adapters, recomputed": (
        {"method": "lora", "lora": QUERIES, "activation_checkpointing": "full"},
        (77.969, 101.999, 113.812, 70.532),
    ),
    "longcat, adapters of all": (LORA, (179.143, 207.706, 219.519, 85.270)),
    "longcat, adapters of all, recomputed": (
        {**LORA, "activation_checkpointing": "full"},
        (89.443, 110.865, 122.678, 85.270),
    ),
    "longcat, adapters of all, autocast, recomputed": (
        {**LORA, "precision": {"recipe": "bf16-mixed", "params": "bf16"}, "activation_checkpointing": "full"},
        (89.688, 111.290, 122.678, 85.270),
    ),
    "longcat, adapters of all, eager": ({**LORA, "attention": "eager"}, (222.170, 249.226, 261.039, 85.270)),
    "longcat, padded": ({"micro_batch_size": 2, "sequences": "padded"}, (361.572, 419.184, 443.585, 334.394)),
    "longcat, eager": ({"attention": "eager"}, (323.369, 352.018, 364.222, 334.381)),
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
        MODELS.get(name.partition(",")[0], DBRX),
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


def test_longcat_s_router_is_read_past_its_adapter() -> None:
    """Its matrices rest, and get no gradient; their 2 x 12 x 8 and 512 x 8 fp32 elements have no states."""
    tensors = expert_adapters(read_architecture(LONGCAT).blocks[0][0].mlp, Adapter(8, "all-linear", "fp32", False))
    assert [(t.shape, t.trained) for t in tensors if "classifier" in t.name] == [((8, 512), False), ((12, 8), False)]


def test_adapters_of_step_s_experts_are_refused() -> None:
    """Stacked experts without any that hand tokens on: their loop was traced without adapters alone."""
    lora = {"rank": 8, "target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj"]}
    with pytest.raises(UnsupportedError, match="one after the other"):
        priced(TEXT, {"method": "lora", "lora": lora, "attention": "sdpa"})


def test_longcat_s_predictions_are_listed_as_left_out() -> None:
    """Its class leaves their weights in the checkpoint."""
    (note,) = read_architecture({**LONGCAT, "num_nextn_predict_layers": 1}).notes
    assert note.startswith("1 multi-token-prediction layer(s) are left out")


def test_longcat_serves_two_caches_a_layer() -> None:
    """A latent and a rotary key of each attention."""
    (block, times), *_ = read_architecture(LONGCAT).blocks
    assert times * kv_bytes_per_sequence(block, 1000, "bf16", 1) == 3 * 2 * (128 + 32) * 1000 * 2
