"""What a model may have in addition to its layers' modules: a task's head, further inputs; and rough models."""

from __future__ import annotations

from memcheck.models.module_types import ParameterTensor
from memcheck.record import Record


class Rough(Record):
    """What ``model: {rough: ...}`` states when no architecture is known."""

    parameters: int
    layers: int
    hidden_size: int
    activation_multiplier: float
    vocab_size: int | None = None


class Pooling(Record):
    """How an encoder's class pools for labels of sequences: one row of each, a layer, an activation."""

    activation: str
    tensors: tuple[ParameterTensor, ...]
    """The layer's matrix and bias, and its norm's weight and bias."""
    norm: bool = False
    """A LayerNorm follows the activation."""
    dropout: float = 0.0
    """In front of the labels' matrix."""
    dropout_before: bool = False
    """In front of the layer, too."""
    mean: bool = False
    """The mean of a sequence's rows, not its first."""
    late: bool = False
    """Labels are made of every row, and their mean is taken (EuroBERT)."""
    by_token: bool = False
    """The layer exists for labels of tokens, too."""
    in_body: bool = False
    """The class without a head has such a layer, too, whose result is unused (BERT, RoBERTa)."""


class TaskHead(Record):
    """What a model ends in instead of logits over its vocabulary."""

    kind: str
    """``classification`` (one answer a sequence) | ``token-classification`` | ``embedding`` (pooled hidden states)."""
    labels: int = 0
    """Outputs of the classifier's matrix."""
    bias: bool = False
    """The classifier's matrix has a bias."""
    dropout: float = 0.0
    pooling: Pooling | None = None
    """An encoder's own layer in front of the labels."""
    idle: tuple[ParameterTensor, ...] = ()
    """Tensors of a layer whose result is unused: they stay allocated, and never have a gradient."""


SAVED = ("classifier", "score")
"""Ends of the names of modules that peft trains whole under labels (task types SEQ_CLS and TOKEN_CLS)."""


def is_saved(name: str) -> bool:
    """Say whether peft trains a copy of this tensor's module, or of one around it, and keeps the frozen one.

    peft 0.21 peft_model.py (PeftModelForSequenceClassification, PeftModelForTokenClassification) adds both names to
    ``modules_to_save``; utils/other.py (_set_trainable) takes every path that ends so, ``pre_classifier`` among them.
    """
    return any(module.endswith(SAVED) for module in name.split(".")[:-1])


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
