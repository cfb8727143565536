"""transformers' eager attention, with what each family has a name for.

scaled_dot_product_attention in pieces, where no fused kernel takes what it is given.

Source: aten/src/ATen/native/transformers/attention.cpp (_scaled_dot_product_attention_math).

Attention with sinks, by family and kernel.
"""

from __future__ import annotations

from memcheck.autograd import eager as sinks_of
from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.eager import EagerSteps, eager, eager_with_names
from memcheck.autograd.kernels import Copied
from memcheck.autograd.operator import cast, copy, dropout, operator, repeat_kv, scale, shift
from memcheck.autograd.tensor import Tape, Value, ceil_div
from memcheck.frameworks.transformers.kernel_choice import additive_mask, copied_operands
from memcheck.models.module_types import (
    BloomAttention,
    FalconAttention,
    Gpt2Attention,
    HeldMask,
    MimoAttention,
    MptAttention,
)
from memcheck.models.types import Attention


def attend_eagerly(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run eager attention: scores, softmax and product as separate operators, with the variables of each family's code.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim], k and v already repeated.
    """
    tape = ctx.tape
    copied = copied_operands(ctx, attention, q.shape[1])
    if attention.sinks or isinstance(attention, MimoAttention):
        return copy(tape, eager_with_sinks(ctx, attention, q, k, v), "contiguous")
    mask_dtype = ctx.setting.compute_dtype if tape.autocast is None else ctx.setting.param_dtype
    if isinstance(attention, FalconAttention):
        return _attend_as_falcon(ctx, attention, (q, k, v), mask_dtype, copied)
    if isinstance(attention, MptAttention):
        mask_dtype = "fp32"  # that of MPT's bias
    if isinstance(attention, BloomAttention) and any(copied):  # `reshape` copies, and variables hold the copies
        q, k, v = (copy(tape, t, "contiguous") for t in (q, k, v))
        ctx.attention_locals += [q, k, v]
        copied = (False, False, False)
    weights: list[Value] = []
    out = eager(
        tape,
        q,
        k,
        v,
        EagerSteps(
            mask_dtype,
            _score_steps(attention),
            fp32_scores=attention.eager.scores_fp32,
            fp32_softmax=attention.eager.softmax_fp32,
            casts_probabilities=attention.eager.softmax_fp32 or isinstance(attention, Gpt2Attention),
            dropout=attention.dropout,
            names_every_step=isinstance(attention, BloomAttention),
        ),
        copied=copied,
        returned=weights,
        named=ctx.attention_locals if isinstance(attention, (BloomAttention, MptAttention)) else None,
    )
    if attention.eager.returned:
        returns(ctx, weights)
    else:
        ctx.unused_outputs += weights
    return copy(tape, out, "contiguous")


def _attend_as_falcon(
    ctx: Context, attention: Attention, heads: tuple[Value, Value, Value], mask_dtype: str, copied: Copied
) -> Value:
    """Run FalconAttention's eager code, whose variables hold the scores until the module returns.

    ``heads``: q, k and v. Weights are dropped only with ALiBi. The other parameters are those of :func:`eager`.
    """
    dropped = attention.dropout if attention.alibi else 0.0
    out, probabilities, named = eager_with_names(
        ctx.tape, *heads, mask_dtype, alibi=attention.alibi, p_dropout=dropped, copied=copied
    )
    ctx.attention_locals += named
    returns(ctx, [probabilities])
    return copy(ctx.tape, out, "contiguous")


def _score_steps(attention: Attention) -> tuple[str, ...]:
    """Return the operators that the family applies to the scores before the softmax."""
    scaled = ("scale", "cap") if attention.softcap else ("scale",)
    if attention.bidirectional:
        has_mask = attention.window is not None or (attention.cross and attention.kernels.explicit_mask)
        return (*scaled, "add") if has_mask else scaled
    if attention.softcap:
        return (*scaled, "add")
    if isinstance(attention.extension, HeldMask):  # unscaled: torch.where by the layer's mask, then the model's
        return ("fill", "add")
    if attention.alibi and attention.fused_qkv == "heads":  # BLOOM: baddbmm scales and adds the bias by itself
        return ("add",)
    if attention.alibi:  # MPT: scale, bias, masked_fill
        return ("scale", "add", "fill")
    return ("scale", "add")


def returns(ctx: Context, weights: list[Value]) -> None:
    """Return the layer's second output, which lives on; a recompute that ends early returns none, and has it to its
    end.
    """
    frame = ctx.tape.frame
    if frame is None or frame.recomputed is None or frame.returned is not None:
        ctx.extra_outputs += weights
    else:
        ctx.unused_outputs += weights


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


def kernel_with_sinks(ctx: Context, attention: Attention, out: Value) -> Value:
    """What a kernel that takes the sinks gives."""
    return sinks_of.with_sinks(ctx.tape, out, _sinks(ctx, attention))


def eager_with_sinks(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run eager attention with sinks: further logits of the softmax, or factors of the output (``scaled_output``).

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. Without sinks only the maximum is subtracted.
    """
    if attention.sinks == "scale":
        return sinks_of.eager_scaled_by_sinks(
            ctx.tape,
            q,
            k,
            v,
            _sinks(ctx, attention),
            ctx.unused_outputs,
            mask_dtype=ctx.setting.param_dtype if ctx.tape.autocast else ctx.setting.compute_dtype,
            p_dropout=attention.dropout,
        )
    sinks = _sinks(ctx, attention) if attention.sinks else None
    mask_dtype = ctx.setting.param_dtype if ctx.tape.autocast else None
    return sinks_of.eager_with_sinks(ctx.tape, q, k, v, sinks, ctx.unused_outputs, mask_dtype=mask_dtype)


def _sinks(ctx: Context, attention: Attention) -> Value:
    return ctx.tape.parameter(ctx.parameter("self_attn.sinks", (ceil_div(attention.heads, ctx.tp),)))
