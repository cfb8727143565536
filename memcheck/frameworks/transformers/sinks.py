"""Attention with sinks, by family and kernel."""

from __future__ import annotations

from memcheck.autograd import eager as sinks_of
from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.models.types import Attention


def kernel_with_sinks(ctx: Context, a: Attention, out: Value) -> Value:
    """What a kernel that takes the sinks gives."""
    return sinks_of.with_sinks(ctx.tape, out, _sinks(ctx, a))


def eager_with_sinks(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run eager attention with sinks: further logits of the softmax, or factors of the output (``scaled_output``).

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. Without sinks only the maximum is subtracted.
    """
    if a.scaled_output:
        s, named = ctx.setting, ctx.unused
        mask = s.compute if ctx.tape.autocast is None else s.params
        return sinks_of.eager_scaled_by_sinks(
            ctx.tape, q, k, v, _sinks(ctx, a), named, mask_dtype=mask, p_dropout=a.dropout
        )
    sinks = _sinks(ctx, a) if a.sinks else None
    mask_dtype = ctx.setting.params if ctx.tape.autocast else None
    return sinks_of.eager_with_sinks(ctx.tape, q, k, v, sinks, ctx.unused, mask_dtype=mask_dtype)


def _sinks(ctx: Context, a: Attention) -> Value:
    return ctx.tape.parameter(ctx.parameter("self_attn.sinks", (-(-a.heads // ctx.tp),)))
