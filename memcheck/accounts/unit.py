"""What one pipeline rank runs: its units, each with its resident tensors and the curve of what it computes."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.curve import Curve
from memcheck.record import Record

IDLE = "resting"
"""Layers that do not run: groups of their own, which are never gathered."""
NEVER_GATHERED = (IDLE, "beside")
"""Groups that are never gathered: layers that do not run, and resident tensors that are no layer."""
WRAPPED = ("block", "tower", "gathered", "idle", IDLE, "encoder")
"""Kinds of units that FSDP makes groups of their own of: layers, by ``_no_split_modules``."""
TOWERS = ("tower", "gathered", "idle", IDLE)
"""Kinds of FSDP units that are layers of a vision or audio tower."""
OF_LANGUAGE = ("block", "encoder")
"""Kinds of FSDP units that are layers of the language model or of an encoder."""
OF_TOWER = (
    "stem", "tower", "gathered", "idle", IDLE, "beside", "merger", "projector", "source", "encoder", "encoded",
)  # fmt: skip
"""Kinds of units between the look-up of the text and the first layer, or before both."""
NUMBERED = {
    "block": "layer", "tower": "vision layer", "gathered": "vision layer", "idle": "idle layer",
    IDLE: "idle layer", "beside": "idle part", "encoder": "encoder layer",
}  # fmt: skip
"""What layers of each kind are called, before their number."""


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
