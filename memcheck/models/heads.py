"""What a model ends in instead of logits over its vocabulary: labels, and an encoder's pooling in front of them."""

from __future__ import annotations

from memcheck.models.module_types import ParameterTensor
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal


class Pooling(Record):
    """How an encoder's class for labels of sequences pools: the rows that it takes, a layer, an activation."""

    activation: str
    tensors: tuple[ParameterTensor, ...]
    """The layer's matrix and bias, and its norm's weight and bias."""
    rows: Literal["first", "mean", "labels"] = "first"
    """Input of the layer: the first row of each sequence, or the mean of its rows. ``labels``: every row; the mean of
    the labels is taken instead (EuroBERT)."""
    norm: bool = False
    """A LayerNorm follows the activation."""
    dropout: float = 0.0
    """In front of the labels' matrix."""
    dropout_before: bool = False
    """In front of the layer, too."""
    also_in: tuple[Literal["token-classification", "embedding"], ...] = ()
    """Further classes that have the layer: the one for labels of tokens; the one without a head, which leaves the
    layer's result unused (BERT, RoBERTa)."""


class TaskHead(Record):
    """The layers of a task in place of the head over the vocabulary."""

    kind: str
    """``classification`` (one answer a sequence) | ``token-classification`` | ``embedding`` (pooled hidden states)."""
    labels: int
    """Outputs of the classifier's matrix; 0: there is none."""
    bias: bool
    """The classifier's matrix has a bias."""
    dropout: float
    pooling: Pooling | None = None
    """An encoder's own layer in front of the labels."""
    unused: tuple[ParameterTensor, ...] = ()
    """Tensors of a layer whose result is unused: they stay allocated, and never have a gradient."""


SAVED = ("classifier", "score")
"""Ends of the names of modules that peft trains whole under labels (task types SEQ_CLS and TOKEN_CLS)."""


def is_saved(name: str) -> bool:
    """Say whether peft trains a copy of this tensor's module, or of one around it, and keeps the frozen one.

    peft 0.21 peft_model.py (PeftModelForSequenceClassification, PeftModelForTokenClassification) adds both names to
    ``modules_to_save``; utils/other.py (_set_trainable) takes every path that ends so, ``pre_classifier`` among them.
    """
    return any(module.endswith(SAVED) for module in name.split(".")[:-1])
