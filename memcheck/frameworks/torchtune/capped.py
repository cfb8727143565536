"""torchtune's attention of Gemma 2, whose scores are capped: no kernel does that, so that all of them are made.

Source: torchtune models/gemma2/_attention.py at bd2a0fc7c, Gemma2Attention.forward, without a mask of its own.
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, copy, scale, scale_in_place, shift, unary
from memcheck.autograd.tensor import Storage, Value
from memcheck.models.types import Attention


def capped_attention(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """Scores in the parameters' dtype, capped; with the fp32 mask they are fp32, which the softmax keeps.

    q, k, v: [batch, heads, sequence, head_dim], transposed, so that the products copy those of several sequences.
    """
    tape = ctx.tape
    b, h, s, d = q.shape
    turned = b > 1 and h > 1
    q = scale_in_place(tape, q, "attention scaling")
    scores = kernels.batched(tape, q, k, (b, h, s, s), "attention scores", (turned, turned))
    masks = _masks(ctx, windowed=a.window is not None)
    scores = scale(tape, scores, "softcap")
    scores = unary(tape, scores, "tanh")
    scores = scale(tape, scores, "softcap")
    scores = shift(tape, scores, "attention mask", "fp32")
    scores = cast(tape, kernels.softmax(tape, scores), q.dtype, "attention probabilities")
    out = kernels.batched(tape, scores, v, (b, h, s, d), "attention output", (False, turned))
    del scores
    out = copy(tape, out, "contiguous")
    del masks
    return out


def _masks(ctx: Context, *, windowed: bool) -> list[Storage]:
    """What variables of the forward hold of [sequence, sequence] to its end: an fp32 mask, of a window three."""
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
    chosen = tape.new(shape, "bool", "sliding mask")
    inside = tape.new(shape, "fp32", "attention mask")
    del chosen, mask
    return [ones, window, inside]
