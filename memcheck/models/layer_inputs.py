"""What layers of Gemma 3n, Gemma 4, HRM-Text and Inkling 2 are given in addition to one stream of hidden states."""

from __future__ import annotations

from memcheck.record import Record


class PerLayer(Record):
    """Per-layer embeddings: a table's row has a part for each layer."""

    width: int
    """Elements of one layer's part."""
    total: int
    """Elements of all layers' parts together."""


class AltUp(Record):
    """Several streams of hidden states, which each layer predicts and corrects (Gemma 3n)."""

    streams: int
    scaled: bool = True
    """The corrected first stream is multiplied by a vector in front of the per-layer input."""


class Sources(Record):
    """Streams of layers before this one, which learned queries weigh together with its own (Inkling 2)."""

    given: int
    """Number of earlier streams that the layer is given."""
    first: bool
    """The layer is the first that is given ``given`` streams."""
    adds: bool
    """What it is given becomes one of them, for its own feed-forward network, too."""
    last: bool
    """Whether the layer is the last one: after it, the model weighs the streams once more."""


class Handed(Record):
    """A state of the router that each layer is given, adds to its own, and hands to the next (ZAYA)."""

    width: int
    first: bool
    """The layer is the first, which is given none, and scales what the embedding made."""
    last: bool
    """Whether the layer is the last one: no layer reads the router state that it makes."""


class Cycle(Record):
    """A layer of two stacks that run again and again, each on the sum of both states (HRM-Text)."""

    joins: bool
    """Whether the layer is the first one of its stack, which reads the sum of both states."""
    ends: bool
    """Whether the layer is the last one of its stack, after which the stack has a norm without a weight."""
    slow: bool
    """The stack makes the slow state, to which the other one's runs send their gradients."""
    graph: bool = True
    """The run has a graph: not under ``torch.no_grad``."""
    cast_before: bool = False
    """Whether the run is the first one with a graph, after a run without one for which autocast has already cast the
    weights.
    """
    final: bool = False
    """The slow state that it makes is what the head reads."""
