"""TRL's fused head (1.15 and newer): losses over log-probabilities that no logits are made for.

Sources: TRL 1.16 trainer/utils.py (``add_fused_lm_head``), trainer/dpo_trainer.py, kto_trainer.py, sft_trainer.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.curve import high
from memcheck.autograd.log_probabilities import fused_log_probabilities
from memcheck.autograd.matrix import Weights
from memcheck.autograd.tensor import Parameter, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.transformers.forward_only_pass import leave, second_hidden
from memcheck.frameworks.transformers.preference_batch import total
from memcheck.job.types import Objective


def fused_loss(
    ctx: Context, objective: Objective, second: ForwardOnlyPass | None, box: list[Value], weights: Weights
) -> Value:
    """Scores of the completions, by the model and, without gradients, by its reference. ``box``: the hidden states."""
    if objective.name == "distill":
        from memcheck.frameworks.transformers.distillation import chunked_divergence

        return chunked_divergence(ctx, objective, second, box, weights)
    tape, s = ctx.tape, ctx.setting
    scored = scored_tokens(ctx, objective)
    compute = s.autocast or box[0].dtype
    kept = box[0] if objective.name == "sft" else None  # as large as what is scored: held until that is over
    found = fused_log_probabilities(tape, box, weights.weight, weights.bias, scored, compute)
    del kept
    if objective.outside:
        tape.casts.clear()
        tape.autocast = None
        ctx.before = high(tape)
        tape.reset_peak()
    loss = total(tape, (found,))
    if second is not None:
        h, around = second_hidden(ctx, second)
        head = second.head
        weight = Parameter("lm_head", (head.vocab, head.hidden), head.dtype, False, has_grad=True)
        bias = Parameter("lm_head.bias", (head.vocab,), head.dtype, False, has_grad=True) if head.bias else None
        theirs = [h]
        del h
        fused_log_probabilities(tape, theirs, weight, bias, scored, compute)
        leave(ctx, around)
    return loss


def scored_tokens(ctx: Context, objective: Objective) -> int:
    """Tokens that are scored: those of completions, and never a row's first."""
    rows, sequence = ctx.setting.batch, ctx.setting.sequence
    return max(1, rows * min(sequence - objective.prompt_length, sequence - 1))
