"""What layers of Gemma 3n and Gemma 4 are given in addition to one stream of hidden states."""

from __future__ import annotations

from memcheck.record import Record


class PerLayer(Record):
    """Per-layer embeddings: a table's row has a part for each layer."""

    width: int
    """Elements of one layer's part."""
    total: int
    """Elements of all layers' parts together."""
    activation: str
    """Hugging Face's name of the function that a layer's gate goes through."""
