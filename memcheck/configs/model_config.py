"""A Hugging Face ``config.json``: what tells it from the configs of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TYPE = "model_type"
SIZES = ("hidden_size", "n_embd", "d_model", "num_hidden_layers", "n_layer", "num_layers")
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections of a model with a tower that hold the sizes of its language model."""


def describes_model(config: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a model's config: it has a type and sizes. ms-swift's arguments have a type alone."""
    return isinstance(config.get(TYPE), str) and any(name in config for name in (*SIZES, *PARTS))
