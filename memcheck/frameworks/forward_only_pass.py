"""What a step knows of a whole forward pass without gradients that runs in addition to its own: of a reference or a
teacher.
"""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.models.types import Norm
from memcheck.record import Record


class ForwardOnlyHead(Record):
    """The last unit of the other model."""

    vocab: int
    """Rows of the head's matrix."""
    hidden: int
    """Width of the hidden states."""
    bias: bool
    """The matrix has a bias."""
    final_norm: Norm | None
    softcap: bool
    """Logits are capped: ``cap * tanh(logits / cap)`` (Gemma 2)."""
    scaled: bool
    """Logits are multiplied by a constant (Cohere, Granite)."""
    dtype: str
    """In what the product sees its weights."""
    trained: bool
    """Whether the head's weights require a gradient. If so, autocast caches its copy of them (under ``no_grad`` it gets
    none).
    """


class ForwardOnlyPass(Record):
    """What another model's forward pass holds, in bytes, and how its head is made."""

    head: ForwardOnlyHead
    setting: Setting
    layers: int
    """At its highest, embedding and layers."""
    casts: int
    """Autocast's copies of its weights, once all layers have run."""
    gathered: int
    """Bytes of the other model's parameters while it runs, and of their flat buffer, where FSDP2 gathers them as one
    group.
    """
    states: int
    """Hidden states of all layers, where the loss asks for them."""
    seen: int = 0
    """What its tower made of pictures and variables refer to until its forward returns."""
    given_out: int = 0
    """What it returns besides logits and hidden states: image tokens, keys and values of all layers."""
