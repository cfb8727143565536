"""A model of which no architecture is known."""

from __future__ import annotations

from memcheck.record import Record


class Rough(Record):
    """What ``model: {rough: ...}`` states when no architecture is known."""

    parameters: int
    layers: int
    hidden_size: int
    activation_multiplier: float
    vocab_size: int | None = None
