"""How a loss over log-probabilities sees a batch, and what it makes of the scores."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Tape, Value
from memcheck.job.types import Objective


class Batch:
    """How the rows of a forward pass are cut for a loss."""

    __slots__ = ("completion", "rows", "sequence", "vocab")

    def __init__(self, ctx: Context, objective: Objective, vocab: int) -> None:
        self.rows, self.sequence, self.vocab = ctx.setting.batch, ctx.setting.sequence, vocab
        self.completion = max(1, self.sequence - objective.prompt_length)
        """Scored tokens of a row."""

    @property
    def whole(self) -> tuple[int, int, int]:
        """All logits."""
        return (self.rows, self.sequence, self.vocab)

    @property
    def shifted(self) -> tuple[int, int, int]:
        """Logits that predict a token of the row."""
        return (self.rows, self.sequence - 1, self.vocab)


def total(tape: Tape, scores: tuple[Value, ...]) -> Value:
    """Compute the loss from log-probabilities: sums, ratios and a mean, at most one number per token."""
    return operator(tape, tape.value((1,), "fp32", "loss"), scores, "gradient of scores")
