"""torchtune's attention of Gemma 2, whose scores are capped: no kernel does that, so that all of them are made.

Source: torchtune models/gemma2/_attention.py at bd2a0fc7c, Gemma2Attention.forward, without a mask of its own.
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.operator import cast, copy, scale, scale_in_place, shift, unary
from memcheck.autograd.tensor import Storage, Value
from memcheck.models.types import Attention


def capped_attention(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run Gemma 2's attention with capped scores operator by operator, as no fused kernel computes the cap.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim], transposed views, so that products copy them if there are
    several sequences. Scores are [batch, heads, sequence, sequence]; the fp32 mask promotes them to fp32.
    """
    tape = ctx.tape
    batch, heads, sequence, head_dim = q.shape
    not_contiguous = batch > 1 and heads > 1
    q = scale_in_place(tape, q, "attention scaling")
    scores = kernels.batched(
        tape,
        q,
        k,
        (batch, heads, sequence, sequence),
        "attention scores",
        copied=(not_contiguous, not_contiguous),
    )
    masks = _masks(ctx, windowed=attention.window is not None)
    scores = scale(tape, scores, "softcap")  # cap * tanh(scores / cap)
    scores = unary(tape, scores, "tanh")
    scores = scale(tape, scores, "softcap")
    scores = shift(tape, scores, "attention mask", "fp32")
    scores = cast(tape, kernels.softmax(tape, scores), q.dtype, "attention probabilities")
    out = kernels.batched(
        tape, scores, v, (batch, heads, sequence, head_dim), "attention output", copied=(False, not_contiguous)
    )
    del scores
    out = copy(tape, out, "contiguous")
    del masks
    return out


def _masks(ctx: Context, *, windowed: bool) -> list[Storage]:
    """Make the masks [sequence, sequence] that variables hold to the end: one in fp32, or three with a window."""
    tape, shape = ctx.tape, (ctx.sequence, ctx.sequence)
    lower = tape.new(shape, "bool", "attention mask")
    upper = tape.new(shape, "bool", "attention mask")
    mask = tape.new(shape, "fp32", "attention mask")
    del lower, upper
    if not windowed:
        return [mask]
    ones = tape.new(shape, "fp32", "ones")
    above = tape.new(shape, "fp32", "triu")
    below = tape.new(shape, "fp32", "tril")
    window = tape.new(shape, "fp32", "sliding mask")
    del above, below
    is_masked = tape.new(shape, "bool", "sliding mask")
    window_mask = tape.new(shape, "fp32", "attention mask")
    del is_masked, mask
    return [ones, window, window_mask]
