"""scaled_dot_product_attention in pieces, where no fused kernel takes what it is given.

Source: aten/src/ATen/native/transformers/attention.cpp (_scaled_dot_product_attention_math).
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, copy, dropout, scale, shift
from memcheck.autograd.indexing import repeat_kv
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Tape, Value
from memcheck.frameworks.transformers.kernel_choice import additive_mask, copied_operands
from memcheck.models.types import Attention


def math_kernel(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """aten _scaled_dot_product_attention_math: scaled q and k, scores with a causal mask, softmax, product.

    ``enable_gqa`` repeats the heads of keys and values first, also of a single one (repeat_interleave). Both, and the
    additive mask, are variables to the end.
    """
    tape = ctx.tape
    b, h, s, _ = q.shape
    if k.shape[1] != h:
        k, v = (repeat_kv(tape, t, h, copies=True) for t in (k, v))
    expanded, mask = k, tape.new((s, s), q.dtype, "causal mask")
    q, k = scale(tape, q), scale(tape, k)
    turned = copied_operands(ctx, a, h)[0]
    weights = kernels.batched(tape, q, k, (b, h, s, s), "attention scores", (turned, False))
    del k
    weights = scale(tape, weights, "attention mask")
    weights = kernels.softmax(tape, weights)
    weights = dropout(tape, weights, a.dropout)
    out = kernels.batched(tape, weights, v, (b, h, s, v.shape[-1]), "attention output")
    del weights, expanded, mask
    return copy(tape, out, "contiguous")


def broadcasting(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """The math kernel without ``enable_gqa``: its products broadcast the heads of keys and values. The model's mask is
    made additive in the queries' dtype.

    Half precision is computed in fp32 unless ``allow_fp16_bf16_reduction_math_sdp`` is set. The weights are cast back,
    too, for a second result that is not used (aten/src/ATen/native/transformers/attention.cpp). Autocast casts what the
    function gets, and nothing inside it.
    """
    tape = ctx.tape
    outside, tape.autocast = tape.autocast, None
    try:
        if outside:
            q, k, v = (cast(tape, t, outside) for t in (q, k, v))
        mask = additive_mask(ctx, a, q.dtype)
        half = q.dtype if q.dtype in ("bf16", "fp16") else ""
        wide_q, wide_k, wide_v = (cast(tape, t, "fp32") for t in (q, k, v)) if half else (q, k, v)
        b, h, s, _ = q.shape
        scaled = scale(tape, wide_q)
        keys = _spread(tape, scale(tape, wide_k), h)
        turned = copied_operands(ctx, a, h)[0]
        weights = kernels.batched(tape, scaled, keys, (b, h, s, s), "attention scores", (turned, False))
        del keys
        weights = shift(tape, weights, "attention mask")
        weights = kernels.softmax(tape, weights)
        weights = dropout(tape, weights, a.dropout)
        narrow = tape.value(weights.shape, half, "unused weights") if half else None
        out = kernels.batched(tape, weights, _spread(tape, wide_v, h), (b, h, s, v.shape[-1]), "attention output")
        if half:
            out = cast(tape, out, half)
        del weights, narrow, mask, scaled, wide_q, wide_k, wide_v
    finally:
        tape.autocast = outside
    return copy(tape, out, "contiguous")


def _spread(tape: Tape, x: Value, heads: int) -> Value:
    """Keys or values for every query head: a batched product folds batch and heads, which of several sequences is a
    copy.
    """
    if x.shape[1] == heads:
        return x
    small, dtype = x.shape, x.dtype
    shape = (small[0], heads, *small[2:])
    view = small[0] == 1 and small[1] == 1
    out = Value(x.storage, shape, dtype) if view else tape.value(shape, dtype, "expanded heads")
    return operator(tape, out, x, "sum")
