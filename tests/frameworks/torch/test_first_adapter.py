"""Layers in front of the first module that has an adapter, against a traced step.

Traced: torch 2.13.0, transformers 5.24.0 and peft 0.21.2 on fake tensors, two ranks of DDP.
"""

from __future__ import annotations

import pytest

from tests.frameworks.torch.load_and_save_plans import priced

MODEL = {
    "model_type": "qwen3_5_moe_text",
    "head_dim": 256,
    "hidden_size": 2048,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 512,
    "num_attention_heads": 16,
    "num_experts": 8,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "vocab_size": 2000,
}
TRAINING = {
    "framework": "pytorch",
    "micro_batch_size": 4,
    "sequence_length": 500,
    "gradient_accumulation_steps": 3,
    "precision": "bf16-mixed",
    "optimizer": {"name": "sgd-momentum"},
    "activation_checkpointing": "none",
    "attention": "sdpa",
    "loss": {"kind": "standard", "upcast": False},
    "method": "lora",
    "lora": {"rank": 8, "dtype": "bf16", "target_modules": ["q_proj", "v_proj"]},
    "kernels": {"ssm": "fallback"},
}
TRACED = {"init": 1000447488, "forward": 1847101952, "backward": 1838457856, "optimizer": 1000447488}


def test_layers_below_the_first_adapter_keep_nothing() -> None:
    """q_proj and v_proj are in the fourth layer alone: those below leave no graph, and nothing goes back through them."""
    answer = priced(TRAINING, {"gradient_as_bucket_view": True}, {"gpus_per_node": 2}, model={"architecture": MODEL})
    found = {i.name: i.allocated_bytes for i in answer.ranks[0].instants if i.name in TRACED}
    assert found == pytest.approx(TRACED, rel=0.001)
