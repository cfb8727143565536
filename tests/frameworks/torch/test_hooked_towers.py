"""A frozen tower whose patches ms-swift hooks, with and without recompute of its layers."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.score import answer

TEXT = {
    "model_type": "qwen3_vl_text",
    "hidden_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 1024,
    "vocab_size": 1000,
    "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True},
}
TOWER = {
    "depth": 4,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 512,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "deepstack_visual_indexes": [1],
    "num_position_embeddings": 2304,
}
SAVED = 53_889_536
"""Bytes that autograd saves in the tower of that model for 512 rows of patches, bf16 (transformers 5.23, with
``patch_embed`` as input embedding, ``model.enable_input_require_grads()``, ``visual.disable_input_require_grads()``)."""
LEAF = 512 * 1024 * 2
"""The hooked rows, which their AccumulateGrad holds."""


def activations(recomputed: bool | None) -> int:
    """Bytes of them at the peak of the forward; None: no trainer names the patches for the hook."""
    training: dict[str, Any] = {
        "framework": "huggingface",
        "method": "lora",
        "lora": {"rank": 8, "target_modules": "all-linear", "parts": ["language"]},
        "micro_batch_size": 1,
        "sequence_length": 256,
        "precision": "bf16-pure",
        "activation_checkpointing": "full",
        "images": {"per_sample": 1, "width": 512, "height": 256},
    }
    if recomputed is not None:
        training["options"] = {"vit_gradient_checkpointing": recomputed}
    architecture = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": TOWER}
    plan = {"model": {"architecture": architecture}, "hardware": {"gpu": "a100-80gb"}, "training": training}
    (rank,) = answer(plan).ranks
    (loss,) = [instant for instant in rank.instants if instant.name == "loss"]
    return loss.components_bytes["activations"]


def test_a_hooked_tower_that_is_not_recomputed_keeps_what_was_traced() -> None:
    """All that autograd saves in it lives until its backward, though nothing in it is trained."""
    assert activations(False) - activations(None) == pytest.approx(SAVED + LEAF, rel=0.03)


def test_a_hooked_tower_that_is_recomputed_keeps_its_layers_inputs() -> None:
    """A fifth of it: four inputs, and what the mergers, which are not recomputed, save."""
    assert 0 < activations(True) - activations(None) < 0.2 * SAVED
