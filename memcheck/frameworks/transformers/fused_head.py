"""TRL's fused head (1.15 and newer): losses over log-probabilities that no logits are made for.

Sources: TRL 1.16 trainer/utils.py (``add_fused_lm_head``), trainer/dpo_trainer.py, kto_trainer.py, sft_trainer.py.

TRL's ``chunked_nll`` (1.4 to 1.14): head and cross entropy on some tokens at a time, each time again in backward.

Source: TRL 1.12 and 1.14.2 trainer/sft_trainer.py (``_chunked_cross_entropy_loss``, ``_chunk``).
"""

from __future__ import annotations

from functools import partial

from memcheck.autograd.context import Context
from memcheck.autograd.curve import checkpointed, peak_of
from memcheck.autograd.kernels import Weights, product
from memcheck.autograd.loss import counted_as, fused_log_probabilities, in_pieces, log_softmax, nll_loss
from memcheck.autograd.operator import cast, cat, copy, index, mul, operator, slices
from memcheck.autograd.tensor import Parameter, Tape, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.transformers.distillation import chunked_divergence
from memcheck.frameworks.transformers.forward_only_pass import leave, second_hidden
from memcheck.frameworks.transformers.head import Head
from memcheck.frameworks.transformers.preference import total
from memcheck.job.types import PIECEWISE, Objective


def fused_loss(
    ctx: Context, objective: Objective, second: ForwardOnlyPass | None, box: list[Value], weights: Weights
) -> Value:
    """Compute TRL's fused loss: log-probabilities of completions without logits, for the model and then its reference.

    ``second``: the reference's forward without gradients; None: there is none. ``box``: a list with the only reference
    to the hidden states, [tokens, hidden]. ``weights``: of the head.
    """
    if objective.name == "distill":
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
        ctx.final_norm_peak = peak_of(tape)
        tape.reset_peak()
    loss = total(tape, (log_probabilities,))
    if second is not None:
        hidden_states, pass_variables = second_hidden(ctx, second)
        head = second.head
        weight = Parameter("lm_head", (head.vocab, head.hidden), head.weight_dtype, requires_grad=False, has_grad=True)
        bias = (
            Parameter("lm_head.bias", (head.vocab,), head.weight_dtype, requires_grad=False, has_grad=True)
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
    return max(1, rows * min(sequence - objective.prompt_tokens, sequence - 1))


CHUNK = 256
"""Tokens of a piece (``_CHUNKED_LM_HEAD_CHUNK_SIZE``)."""


def chunked_loss(ctx: Context, head: Head, box: list[Value], weights: Weights) -> Value:
    """Replay TRL's ``chunked_nll``: head and cross entropy on chunks of 256 tokens, each checkpointed.

    ``box``: a list with the only reference to the hidden states, [tokens, hidden]. All tokens but each row's first are
    scored.
    """
    tape = ctx.tape
    weights.weight.used_as_view = True  # `w.t()`, of which each piece makes and drops a copy of its own
    tokens = scored_tokens(ctx, head.objective)
    hidden_states = box[0]  # `outputs.last_hidden_state` is there until the model's forward returns
    if ctx.setting.batch > 1:  # `hidden_states[..., :-1, :].reshape(-1, hidden)`: of one row a view
        hidden_states = copy(
            tape, slices(tape, hidden_states, (tokens, ctx.hidden))[0], "hidden states without the last"
        )
    order = tape.new((tokens,), "int64", "scored tokens first")
    hidden_states = index(tape, hidden_states, order, (tokens, ctx.hidden), "hidden[order]")
    del order
    labels = tape.new((tokens,), "int64", "labels")
    losses = []
    casts_inputs = head.objective.loss_code == PIECEWISE[0]
    for chunk in in_pieces(tokens, CHUNK):
        # sliced in the loop: its backward pads the gradient to all tokens before an earlier chunk's begins
        chunk_input = slices(tape, hidden_states, (chunk.size, ctx.hidden))[0]
        with counted_as(tape, chunk.copies):
            losses.append(checkpointed(ctx, partial(_piece, weights, casts_inputs), chunk_input))
        del chunk_input
    del hidden_states, labels
    return cat(tape, tuple(losses), (1,), "sum of losses")


def _piece(weights: Weights, wide: bool, ctx: Context, hidden_states: Value) -> Value:
    """Replay ``_chunk`` of TRL's chunked loss: loss and entropy of one chunk; the entropy saves nothing for backward.

    ``weights``: of the head. ``wide``: the product is computed in fp32. ``hidden_states``: [chunk tokens, hidden].
    """
    tape = ctx.tape
    weight = tape.parameter(weights.weight)
    bias = tape.parameter(weights.bias) if weights.bias is not None else None
    if wide:
        logits = product(tape, cast(tape, hidden_states, "fp32"), cast(tape, weight, "fp32"), "lm_head", bias)
    else:
        narrow_weight = cast(tape, weight, hidden_states.dtype)
        logits = product(tape, hidden_states, narrow_weight, "lm_head", bias)
        del narrow_weight
        logits = cast(tape, logits, "fp32", "logits.float()")
    log_probabilities = log_softmax(tape, cast(tape, logits, "fp32"))
    loss = nll_loss(tape, log_probabilities)
    _entropy(tape, log_probabilities)
    return loss


def _entropy(tape: Tape, log_probabilities: Value) -> None:
    """Replay ``(-(log_p.exp() * log_p).sum(-1) * valid).sum()`` of [tokens, vocab].

    Its graph dies before backward, but a recompute runs to the last tensor that the graph saved.
    """
    exponent = tape.value(log_probabilities.shape, log_probabilities.dtype, "exp of a chunk")
    exponent = operator(tape, exponent, log_probabilities, None, saves=(exponent,))
    terms = mul(tape, exponent, log_probabilities, "entropy of a chunk")
    del exponent
    rows = operator(tape, tape.value(terms.shape[:1], terms.dtype, "entropy"), terms, None)
    del terms
    valid = tape.new(rows.shape, "bool", "valid")
    operator(tape, tape.value(rows.shape, rows.dtype, "entropy"), rows, None, saves=(valid,))
