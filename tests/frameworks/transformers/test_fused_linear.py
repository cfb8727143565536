"""Liger's fused linear cross entropy under autocast, against traced steps.

Traced: torch 2.13.0, transformers 5.24.0 and peft 0.21.2 on fake tensors: bytes of each instant on one GPU.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks.torch.load_and_save_plans import priced

MODEL = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
TRAINING = {
    "framework": "pytorch",
    "micro_batch_size": 2,
    "sequence_length": 512,
    "gradient_accumulation_steps": 1,
    "precision": "bf16-mixed",
    "optimizer": {"name": "adamw", "implementation": "foreach"},
    "activation_checkpointing": "full",
    "attention": "sdpa",
    "loss": "fused-linear",
}
LORA = {"method": "lora", "lora": {"rank": 8, "dtype": "fp32", "target_modules": ["q_proj", "v_proj"]}}
TRACED: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("adapters", LORA, {"forward": 165325824, "loss": 198044672, "backward": 180577280, "optimizer": 150551552}),
    (
        "frozen head",
        {"freeze": ["head"]},
        {"forward": 342160384, "loss": 378024960, "backward": 405344256, "optimizer": 487666688},
    ),
    ("full", {}, {"forward": 473232896, "loss": 607401472, "backward": 601952768, "optimizer": 749811200}),
]


@pytest.mark.parametrize(("changes", "traced"), [row[1:] for row in TRACED], ids=[row[0] for row in TRACED])
def test_autocast_copies_the_heads_weight_for_every_chunk(changes: dict[str, Any], traced: dict[str, int]) -> None:
    """The transposed weight is no leaf, so that its copy is cached neither for a frozen head nor for a trained one."""
    answer = priced({**TRAINING, **changes}, {}, {"gpus_per_node": 1}, model={"architecture": MODEL})
    found = {i.name: i.allocated_bytes for i in answer.ranks[0].instants if i.name in traced}
    assert found == pytest.approx(traced, rel=0.001)
