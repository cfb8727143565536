"""Attention with sinks, by family and kernel."""

from __future__ import annotations

from memcheck.autograd import eager as sinks_of
from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value, ceil_div
from memcheck.models.types import Attention


def kernel_with_sinks(ctx: Context, attention: Attention, out: Value) -> Value:
    """What a kernel that takes the sinks gives."""
    return sinks_of.with_sinks(ctx.tape, out, _sinks(ctx, attention))


def eager_with_sinks(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run eager attention with sinks: further logits of the softmax, or factors of the output (``scaled_output``).

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. Without sinks only the maximum is subtracted.
    """
    if attention.sinks == "scale":
        s, named = ctx.setting, ctx.unused_outputs
        mask = s.compute_dtype if ctx.tape.autocast is None else s.param_dtype
        return sinks_of.eager_scaled_by_sinks(
            ctx.tape, q, k, v, _sinks(ctx, attention), named, mask_dtype=mask, p_dropout=attention.dropout
        )
    sinks = _sinks(ctx, attention) if attention.sinks else None
    mask_dtype = ctx.setting.param_dtype if ctx.tape.autocast else None
    return sinks_of.eager_with_sinks(ctx.tape, q, k, v, sinks, ctx.unused_outputs, mask_dtype=mask_dtype)


def _sinks(ctx: Context, attention: Attention) -> Value:
    return ctx.tape.parameter(ctx.parameter("self_attn.sinks", (ceil_div(attention.heads, ctx.tp),)))
