"""What a layer of one family has in addition to its modules: inputs, streams, adapters of other layers."""

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


class HyperConnections(Record):
    """What mixes the streams around each half of a layer (DeepSeek V4, Hy 4)."""

    rounds: int
    """Rounds in which the mixture is normed; 0: it is not (Hy 4)."""


class SparePairs(Record):
    """Low-rank pairs that a layer's own module over shared tensors holds for peft to adapt (Zamba 2)."""

    layers: int
    """Number of other layers whose pairs these are."""
