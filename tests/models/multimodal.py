"""Multimodal models with their sizes, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from memcheck.families.registry import TOWERS

FACTS = Path(__file__).parent.parent / "data" / "vision"


class Model:
    """A model with what its class has of parameters."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.config: dict[str, Any] = row["config"]
        self.parameters: int = row["parameters"]


def facts(name: str) -> list[dict[str, Any]]:
    """The rows of one file."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: list[dict[str, Any]] = yaml.load((FACTS / f"{name}.yaml").read_text(), loader)  # noqa: S506 - a safe one
    return rows


MODELS = {row["id"]: Model(row) for row in facts("models") if row["config"]["model_type"] in TOWERS}
QWEN2_5_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 128000,
    "tie_word_embeddings": True,
    "vision_config": {
        "depth": 32,
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "out_hidden_size": 2048,
    },
}
"""Qwen2.5-VL-3B, its language model's keys beside the tower's, as its file has them."""
