"""Padded rows under FlashAttention, against steps traced through transformers 5.23's own ``_upad_input``, ``_pad_input``."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.families.registry import catalog_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.training import unmodelled
from tests.frameworks.torch.test_towers import priced

MIB = 2**20
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama",
        "vocab_size": 4000,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    },
    "bert": {
        "model_type": "bert",
        "vocab_size": 4000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 4,
        "num_attention_heads": 12,
        "max_position_embeddings": 1024,
    },
}
TRACED: list[tuple[str, str, str, int, int, float, dict[str, float]]] = [
    (
        "llama",
        "bf16-pure",
        "none",
        2,
        1024,
        791.253,
        {"forward": 697.895, "loss": 760.035, "backward": 791.253, "optimizer": 508.28},
    ),
    (
        "llama",
        "bf16-pure",
        "full",
        2,
        1024,
        519.05,
        {"forward": 362.504, "loss": 415.67, "backward": 519.05, "optimizer": 508.28},
    ),
    (
        "llama",
        "bf16-mixed",
        "none",
        2,
        1024,
        1274.494,
        {"forward": 1161.323, "loss": 1251.275, "backward": 1274.494, "optimizer": 1016.493},
    ),
    (
        "bert",
        "bf16-pure",
        "none",
        4,
        512,
        483.355,
        {"forward": 420.854, "loss": 452.105, "backward": 483.355, "optimizer": 312.992},
    ),
    (
        "bert",
        "bf16-mixed",
        "full",
        4,
        512,
        625.885,
        {"forward": 494.16, "loss": 567.28, "backward": 600.479, "optimizer": 625.885},
    ),
]
"""Model, precision, recompute, rows, tokens; MiB at the peak, and of each moment."""


@pytest.mark.parametrize("row", TRACED)
def test_rows_without_their_padding(row: tuple[str, str, str, int, int, float, dict[str, float]]) -> None:
    """Copies of queries, keys, values and output, which full rows have not: every moment is within 0.03 %."""
    model, precision, recompute, rows, tokens, peak, phases = row
    training: dict[str, Any] = {
        "framework": "pytorch",
        "micro_batch_size": rows,
        "sequence_length": tokens,
        "sequences": "padded",
        "precision": precision,
        "optimizer": {"name": "adamw", "implementation": "foreach"},
        "attention": "flash",
        "activation_checkpointing": recompute,
        "clip_grad_norm": False,
        "loss": {"kind": "standard", "keep_logits": True},
        "initialization": "device",
        "checkpoint": "none",
    }
    found = priced(CONFIGS[model], training)
    assert found.allocated_bytes / MIB == pytest.approx(peak, rel=0.0003)
    instants = {each.name: each.allocated_bytes / MIB for each in found.ranks[0].instants}
    assert {name: instants[name] for name in phases} == pytest.approx(phases, rel=0.0003)


@pytest.mark.parametrize(
    ("model", "rows", "refused"),
    [
        ("llama-3.2-1b", "padded", ""),
        ("llama-3.2-1b", "masked", "attention `flash`"),
        ("gpt-oss-20b", "padded", "attention `flash`"),
        ("bart-base", "padded", "attention `flash`"),
    ],
)
def test_what_has_no_model(model: str, rows: str, refused: str) -> None:
    """Sinks, encoder-decoders, and masks of documents, which FlashAttention is not given."""
    assert unmodelled(rows, catalog_architecture(model), FRAMEWORKS["huggingface"], "flash", 1) == refused
