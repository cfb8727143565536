"""Which of an encoder's two classes for words the estimate of a plan assumes."""

from __future__ import annotations

from memcheck.job.defaults import Defaults
from memcheck.models.types import Architecture
from memcheck.plan.types import TrainingSpec

MASKED_WORDS = "the class for masked words; loss.upcast: true is that for causal language, with wider logits"
"""An encoder's type names several classes, and its file often none."""


def note_class(training: TrainingSpec, architecture: Architecture, defaults: Defaults) -> None:
    """Note that the class is the one for masked words, if another one exists: not with a decoder or a copied loss."""
    stated = training.loss is not None and training.loss.upcast is not None
    if not stated and architecture.encoder is None and not architecture.copied_logits:
        defaults.note("training.head.kind", "lm", MASKED_WORDS)
