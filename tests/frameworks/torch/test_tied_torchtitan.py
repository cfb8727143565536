"""Tied models under torchtitan: embedding, final norm and head are one FSDP2 group."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.score import answer

SMALL = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
LARGER = {**SMALL, "hidden_size": 2560, "num_hidden_layers": 8, "num_attention_heads": 32, "intermediate_size": 9728}
CHUNKED = {"kind": "chunked", "chunks": 8}
MIB = 2**20


def instants(architecture: dict[str, Any], tokens: int, recompute: str, loss: object) -> dict[str, float]:
    """MiB at each instant, on 8 GPUs."""
    plan = {
        "model": {"architecture": architecture},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8},
        "parallelism": {"zero_stage": 3},
        "training": {
            "framework": "torchtitan",
            "torch_version": "2.13",
            "sequence_length": tokens,
            "micro_batch_size": 1,
            "optimizer": {"name": "adamw", "implementation": "foreach"},
            "activation_checkpointing": recompute,
            "loss": loss,
        },
    }
    (rank,) = answer(plan).ranks
    return {instant.name: instant.allocated_bytes / MIB for instant in rank.instants}


@pytest.mark.parametrize(
    ("architecture", "tokens", "recompute", "loss", "traced"),
    [
        (SMALL, 4096, "none", "standard", (7068.096, 12943.104, 14130.104, 1533.418)),
        (SMALL, 4096, "full", CHUNKED, (1733.708, 3149.84, 2472.055, 1607.605)),
        (LARGER, 2048, "full", "standard", (3606.369, 5536.977, 6130.477, 2868.583)),
    ],
)
def test_the_tied_group_is_gathered_as_traced(
    architecture: dict[str, Any], tokens: int, recompute: str, loss: object, traced: tuple[float, ...]
) -> None:
    """Every moment of traced steps of torchtitan b5bcd76c6 on torch 2.13: qwen3 0.6B and 4B, the latter of 8 layers.

    The group is gathered from the embedding on (distributed/fsdp.py, enable_weight_tying); a chunked loss gathers it
    again, keeps the head's gradient in fp32 and reduces it, and its buffer stays for the first layers' backward.
    """
    found = instants(architecture, tokens, recompute, loss)
    for name, expected in zip(("forward", "loss", "backward", "optimizer"), traced, strict=True):
        assert found[name] == pytest.approx(expected, rel=2e-5), name


def test_a_model_of_two_matrices_has_two_groups() -> None:
    """Its embedding is gathered for its own forward alone."""
    apart = instants({**SMALL, "tie_word_embeddings": False}, 4096, "none", "standard")
    tied = instants(SMALL, 4096, "none", "standard")
    states = 12 * 151936 * 1024 / 8 / MIB
    assert apart["loss"] - states == pytest.approx(tied["loss"], rel=1e-4)  # [norm, lm_head] is gathered in both
