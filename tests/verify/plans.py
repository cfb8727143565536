"""Plans that verify's tests run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memcheck.plan.read import load_documents
from memcheck.verify.subject import Subject, load_subject

TINY = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
"""A Llama that a CPU trains in milliseconds."""


def layers(name: str, count: int) -> dict[str, Any]:
    """A catalog model with fewer layers."""
    return {"name": name, "overrides": {"num_hidden_layers": count}}


def plan(
    *, gpus: int = 1, parallelism: dict[str, Any] | None = None, model: Any = None, **training: Any
) -> dict[str, Any]:
    """A plan in plain PyTorch on one node."""
    return {
        "memcheck": 1,
        "name": "tiny",
        "model": model or {"architecture": TINY},
        "hardware": {"gpu": {"name": "any", "memory_gib": 100000}, "gpus_per_node": gpus},
        "parallelism": parallelism or {},
        "training": {
            "framework": "pytorch",
            "micro_batch_size": 2,
            "sequence_length": 128,
            "gradient_accumulation_steps": 1,
            "precision": "bf16-pure",
            **training,
        },
    }


def write(folder: Path, found: dict[str, Any], name: str = "plan.yaml") -> Path:
    """The plan as a file: JSON is YAML."""
    path = folder / name
    path.write_text(json.dumps(found), encoding="utf-8")
    return path


def subject(found: dict[str, Any], path: str = "plan.yaml") -> Subject:
    """The plan, read and priced."""
    (document,) = load_documents(path, json.dumps(found).encode())
    loaded = load_subject(document)
    assert isinstance(loaded, Subject), [f.message for f in loaded.findings]
    return loaded
