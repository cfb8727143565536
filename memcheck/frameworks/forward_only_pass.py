"""A whole forward pass without gradients that a step runs in addition to its own: of a reference or a teacher."""

from __future__ import annotations

from memcheck.autograd.context import Setting
from memcheck.models.types import Norm
from memcheck.record import Record


class ForwardOnlyHead(Record):
    """Final norm and head of the other model."""

    vocab: int
    """Rows of the head's matrix."""
    hidden: int
    """Width of the hidden states."""
    bias: bool
    """The matrix has a bias."""
    final_norm: Norm | None
    """The norm of the last hidden state; None: there is none."""
    softcap: bool
    """Logits are capped: ``cap * tanh(logits / cap)`` (Gemma 2)."""
    scales_logits: bool
    """Logits are multiplied by a constant (Cohere, Granite)."""
    weight_dtype: str
    """Dtype in which the product sees the head's weights."""
    trained: bool
    """Whether the head's weights require a gradient. If so, autocast caches its copy of them (under ``no_grad`` it gets
    none).
    """


class ForwardOnlyPass(Record):
    """Bytes of another model's forward pass without gradients, and the modules of its head."""

    head: ForwardOnlyHead
    setting: Setting
    """The setting of the pass: its dtypes, and that nothing has a graph."""
    layers_peak_bytes: int
    """The peak of embedding and layers, in addition to the other fields."""
    autocast_copies_bytes: int
    """Autocast's copies of its weights, once all layers have run."""
    gathered_bytes: int
    """The other model's gathered parameters while it runs, and their flat buffer, if FSDP or ZeRO-3 shards it."""
    hidden_states_bytes: int
    """Hidden states of all layers, for a loss that asks for them."""
    tower_variables_bytes: int = 0
    """Outputs of its vision tower, to which variables refer until its forward returns."""
    other_outputs_bytes: int = 0
    """What it returns in addition to logits and hidden states: image tokens, keys and values of all layers."""
