"""What one pipeline rank runs: its units, each with its resident tensors and the curve of what it computes."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.curve import Curve
from memcheck.record import Record


class Unit(Record):
    """One unit of the model on one rank."""

    kind: str
    """``embedding`` | ``block`` | ``head``; of a vision tower ``stem`` | ``tower`` (a layer) | ``idle`` (weights that
    get no gradient) | ``projector``; of an encoder ``source`` (its input) | ``encoder`` (a layer) | ``encoded``."""
    name: str
    tensors: tuple[LocalTensor, ...]
    """The unit's parameters, without the tied head's copy of the embedding."""
    fresh: Curve
    """The curve of the first micro-batch, whose gradients are new."""
    again: Curve
    """The curve of later micro-batches, whose gradients are added to existing ones. The same where no micro-batch adds
    any.
    """
    reduced: str = ""
    """A tensor whose gradient is already reduced when the unit's forward ends."""
    adapted: bool = False
    """Whether the unit's own parameters are frozen while its input is saved for a recompute."""
    offloaded: int = 0
    """Bytes that its forward sends to the host and its backward fetches (activation offload)."""


class Part(Record):
    """Which layers a pipeline rank holds."""

    first: int
    last: int
    """The number after that of the last layer."""
    embedding: bool
    head: bool
