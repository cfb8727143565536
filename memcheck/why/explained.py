"""How a plan explains a failure, as records: causes with their certainty, what is excluded, and the differences.

Answers show these records; the engine that finds them is loaded only where there is a plan.
"""

from __future__ import annotations

from typing import Any

from memcheck.plan.finding import Remedy
from memcheck.record import Record
from memcheck.rules.result import PlanResult
from memcheck.why.shapes import TensorFit

AS_PREDICTED, MORE_TOKENS, LONGER, LARGER = "as-predicted", "more-tokens", "longer-sequence", "larger-micro-batch"
LOGITS_KEPT, EAGER, RECOMPUTE = "logits-kept", "eager-attention", "recompute-off"
NOT_SHARDED, NOT_SYNCHRONISED, IMBALANCE = "not-sharded", "gradients-not-synchronised", "imbalance"
EVALUATION, SAVE, LOAD, LEAK = "evaluation", "save", "load", "leak"
FRAGMENTATION, OTHER_PROCESS, SMALLER_CARD, UNKNOWN_CAUSE = "fragmentation", "other-process", "smaller-card", "unknown"
"""Identifiers of causes, as the JSON has them."""

WORDS = {
    MORE_TOKENS: "more tokens",
    LONGER: "longer sequences",
    LARGER: "a larger micro-batch",
    LOGITS_KEPT: "logits that are kept",
    EAGER: "attention without a fused kernel",
    RECOMPUTE: "no recomputation",
    NOT_SHARDED: "a model that is not sharded",
    NOT_SYNCHRONISED: "gradients that are synchronised late",
    IMBALANCE: "unbalanced experts",
    EVALUATION: "an evaluation",
    SAVE: "gathering to save",
    LOAD: "loading the whole model",
}
"""Causes in words for people."""


class Cause(Record):
    """One explanation, with what it changes of the plan."""

    id: str
    certainty: str
    text: str
    changes: dict[str, Any]
    instant: str | None = None
    pipeline_rank: int | None = None
    predicted_bytes: int = 0
    """Allocated bytes at the peak with the change."""
    lines: tuple[int, ...] = ()


class Excluded(Record):
    """An explanation that the figures rule out."""

    id: str
    text: str
    lines: tuple[int, ...]


class Difference(Record):
    """One term as it was observed and as it was predicted."""

    term: str
    observed_bytes: int
    predicted_bytes: int


class Explained(Record):
    """What a plan says of an evidence."""

    plan: PlanResult
    causes: tuple[Cause, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    differences: tuple[Difference, ...] = ()
    fit: TensorFit = TensorFit((), 0, 0)
    remedies: tuple[Remedy, ...] = ()
    on: PlanResult | None = None
    """The plan that the remedies change: as the first cause says it ran; None where that is the plan itself."""
