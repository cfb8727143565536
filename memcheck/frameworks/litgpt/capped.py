"""LitGPT's capped numbers (Gemma 2): scores, which no kernel caps, so that all of them are made, and logits.

Source: litgpt model.py at 26857050 (CausalSelfAttention.scaled_dot_product_attention, do_softcapping).
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.operator import cast, scale, shift, unary
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.models.types import Attention


def capped(tape: Tape, x: Value) -> Value:
    """``torch.tanh(x / thresh) * thresh``."""
    return scale(tape, unary(tape, scale(tape, x, "softcap"), "tanh"), "softcap")


def capped_attention(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run attention with capped scores (Gemma 2): all scores, an fp32 softmax, probabilities in q's dtype.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. Scores are [batch, heads, sequence, sequence].
    """
    tape = ctx.tape
    batch, heads, sequence, head_dim = q.shape
    window_mask = _window_mask(ctx, q.dtype) if attention.window is not None else None
    v_not_contiguous = (
        batch > 1 and attention.kv_heads == attention.heads
    )  # a view of the matrix of q, k and v, which the product copies
    scores = scale(
        tape, kernels.batched(tape, q, k, (batch, heads, sequence, sequence), "attention scores"), "attention scaling"
    )
    scores = capped(tape, scores)
    mask = window_mask or _causal_mask(ctx, q.dtype)
    scores = shift(tape, scores, "attention mask", q.dtype)
    scores = cast(tape, kernels.softmax(tape, scores, "fp32"), q.dtype, "attention probabilities")
    out = kernels.batched(
        tape, scores, v, (batch, heads, sequence, head_dim), "attention output", (False, v_not_contiguous)
    )
    del scores, mask, window_mask
    return out


def _causal_mask(ctx: Context, dtype: str) -> Storage:
    """Make the causal mask, [sequence, sequence]: ``ones.triu(diagonal=1)``, filled where it is true."""
    tape, shape = ctx.tape, (ctx.sequence, ctx.sequence)
    ones = tape.new(shape, dtype, "ones")
    mask = tape.new(shape, dtype, "attention mask")
    del ones
    chosen = tape.new(shape, "bool", "attention mask")
    del chosen
    return mask


def _window_mask(ctx: Context, dtype: str) -> Storage:
    """Make the mask of a sliding window, [sequence, sequence].

    It is filled row by row while the causal mask is alive, whose place it takes.
    """
    causal = _causal_mask(ctx, dtype)
    mask = ctx.tape.new((ctx.sequence, ctx.sequence), dtype, "sliding window mask")
    del causal
    return mask
