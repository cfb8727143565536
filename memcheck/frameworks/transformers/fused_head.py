"""TRL's fused head (1.15 and newer): losses over log-probabilities that no logits are made for.

Sources: TRL 1.16 trainer/utils.py (``add_fused_lm_head``), trainer/dpo_trainer.py, kto_trainer.py, sft_trainer.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.curve import high
from memcheck.autograd.kernels import Weights
from memcheck.autograd.loss import fused_log_probabilities
from memcheck.autograd.tensor import Parameter, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.transformers.forward_only_pass import leave, second_hidden
from memcheck.frameworks.transformers.preference_batch import total
from memcheck.job.types import Objective


def fused_loss(
    ctx: Context, objective: Objective, second: ForwardOnlyPass | None, box: list[Value], weights: Weights
) -> Value:
    """Compute TRL's fused loss: log-probabilities of completions without logits, for the model and then its reference.

    ``second``: the reference's forward without gradients; None: there is none. ``box``: a list with the only reference
    to the hidden states, [tokens, hidden]. ``weights``: of the head.
    """
    if objective.name == "distill":
        from memcheck.frameworks.transformers.distillation import chunked_divergence

        return chunked_divergence(ctx, objective, second, box, weights)
    tape, setting = ctx.tape, ctx.setting
    scored_count = scored_tokens(ctx, objective)
    compute = setting.autocast_dtype or box[0].dtype
    last_hidden = box[0] if objective.name == "sft" else None  # a variable of SFTTrainer until all tokens are scored
    log_probabilities = fused_log_probabilities(tape, box, weights.weight, weights.bias, scored_count, compute)
    del last_hidden
    if objective.loss_after_model:
        tape.casts.clear()
        tape.autocast = None
        ctx.final_norm_peak = high(tape)
        tape.reset_peak()
    loss = total(tape, (log_probabilities,))
    if second is not None:
        hidden_states, pass_variables = second_hidden(ctx, second)
        head = second.head
        weight = Parameter("lm_head", (head.vocab, head.hidden), head.dtype, requires_grad=False, has_grad=True)
        bias = (
            Parameter("lm_head.bias", (head.vocab,), head.dtype, requires_grad=False, has_grad=True)
            if head.bias
            else None
        )
        reference_hidden = [hidden_states]
        del hidden_states
        fused_log_probabilities(tape, reference_hidden, weight, bias, scored_count, compute)
        leave(ctx, pass_variables)
    return loss


def scored_tokens(ctx: Context, objective: Objective) -> int:
    """Return how many tokens are scored: those of completions, and never a row's first."""
    rows, sequence = ctx.setting.batch, ctx.setting.sequence
    return max(1, rows * min(sequence - objective.prompt_length, sequence - 1))
