"""scaled_dot_product_attention in pieces, where no fused kernel takes what it is given.

Source: aten/src/ATen/native/transformers/attention.cpp (_scaled_dot_product_attention_math).
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.operator import cast, copy, dropout, operator, repeat_kv, scale, shift
from memcheck.autograd.tensor import Tape, Value
from memcheck.frameworks.transformers.kernel_choice import additive_mask, copied_operands
from memcheck.models.types import Attention


def math_kernel(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Replay aten's _scaled_dot_product_attention_math: scaled q and k, scores with a causal mask, softmax, product.

    ``q``: [batch, heads, sequence, head_dim]. ``enable_gqa`` first repeats the heads of k and v, even a single one
    (repeat_interleave). Both, and the additive mask, are variables to the end.
    """
    tape = ctx.tape
    batch, heads, sequence, _ = q.shape
    if k.shape[1] != heads:
        k, v = (repeat_kv(tape, t, heads, copies=True) for t in (k, v))
    repeated_k, mask = k, tape.new((sequence, sequence), q.dtype, "causal mask")
    q, k = scale(tape, q), scale(tape, k)
    q_not_contiguous = copied_operands(ctx, attention, heads)[0]
    weights = kernels.batched(
        tape, q, k, (batch, heads, sequence, sequence), "attention scores", (q_not_contiguous, False)
    )
    del k
    weights = scale(tape, weights, "attention mask")
    weights = kernels.softmax(tape, weights)
    weights = dropout(tape, weights, attention.dropout)
    out = kernels.batched(tape, weights, v, (batch, heads, sequence, v.shape[-1]), "attention output")
    del weights, repeated_k, mask
    return copy(tape, out, "contiguous")


def broadcasting(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Replay the math kernel without ``enable_gqa`` (Falcon): its products broadcast the heads of keys and values.

    ``q``: [batch, heads, sequence, head_dim]. The model's mask is made additive in q's dtype. Half precision runs in
    fp32 unless ``allow_fp16_bf16_reduction_math_sdp`` is set. The weights are then cast back for a second result that
    nothing uses. autocast casts the arguments and nothing inside. Source:
    aten/src/ATen/native/transformers/attention.cpp.
    """
    tape = ctx.tape
    outer_autocast, tape.autocast = tape.autocast, None
    try:
        if outer_autocast:
            q, k, v = (cast(tape, t, outer_autocast) for t in (q, k, v))
        mask = additive_mask(ctx, attention, q.dtype)
        half_dtype = q.dtype if q.dtype in ("bf16", "fp16") else ""
        compute_q, compute_k, compute_v = (cast(tape, t, "fp32") for t in (q, k, v)) if half_dtype else (q, k, v)
        batch, heads, sequence, _ = q.shape
        scaled = scale(tape, compute_q)
        keys = _expand_heads(tape, scale(tape, compute_k), heads)
        q_not_contiguous = copied_operands(ctx, attention, heads)[0]
        weights = kernels.batched(
            tape, scaled, keys, (batch, heads, sequence, sequence), "attention scores", (q_not_contiguous, False)
        )
        del keys
        weights = shift(tape, weights, "attention mask")
        weights = kernels.softmax(tape, weights)
        weights = dropout(tape, weights, attention.dropout)
        unused_weights = tape.value(weights.shape, half_dtype, "unused weights") if half_dtype else None
        out = kernels.batched(
            tape,
            weights,
            _expand_heads(tape, compute_v, heads),
            (batch, heads, sequence, v.shape[-1]),
            "attention output",
        )
        if half_dtype:
            out = cast(tape, out, half_dtype)
        del weights, unused_weights, mask, scaled, compute_q, compute_k, compute_v
    finally:
        tape.autocast = outer_autocast
    return copy(tape, out, "contiguous")


def _expand_heads(tape: Tape, x: Value, heads: int) -> Value:
    """Expand keys or values to every query head.

    A batched product folds batch and heads into one dimension, which copies them if there are several sequences.
    """
    if x.shape[1] == heads:
        return x
    kv_shape, dtype = x.shape, x.dtype
    shape = (kv_shape[0], heads, *kv_shape[2:])
    is_view = kv_shape[0] == 1 and kv_shape[1] == 1
    out = Value(x.storage, shape, dtype) if is_view else tape.value(shape, dtype, "expanded heads")
    return operator(tape, out, x, "sum")
