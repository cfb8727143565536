"""transformers' eager attention, with what each family has a name for."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.eager import eager, eager_with_names
from memcheck.autograd.kernels import Copied
from memcheck.autograd.operator import copy
from memcheck.autograd.tensor import Value
from memcheck.models.module_types import (
    BloomAttention,
    FalconAttention,
    Gpt2Attention,
    HeldMask,
    MimoAttention,
    MptAttention,
)
from memcheck.models.types import Attention


def attend_eagerly(ctx: Context, attention: Attention, q: Value, k: Value, v: Value, copied: Copied) -> Value:
    """Run eager attention: scores, softmax and product as separate operators, with the variables of each family's code.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim], k and v already repeated. ``copied``: which of the three
    the products copy.
    """
    tape = ctx.tape
    if attention.sinks or isinstance(attention, MimoAttention):
        from memcheck.frameworks.transformers.sinks import eager_with_sinks

        return copy(tape, eager_with_sinks(ctx, attention, q, k, v), "contiguous")
    mask_dtype = ctx.setting.compute_dtype if tape.autocast is None else ctx.setting.param_dtype
    if isinstance(attention, MptAttention):
        mask_dtype = "fp32"  # that of MPT's bias
    if isinstance(attention, FalconAttention):
        dropped = attention.dropout if attention.alibi else 0.0
        out, probabilities, named = eager_with_names(
            tape, q, k, v, mask_dtype, alibi=attention.alibi, p_dropout=dropped, copied=copied
        )
        ctx.attention_locals += named
        returns(ctx, [probabilities])
        return copy(tape, out, "contiguous")
    weights: list[Value] = []
    out = eager(
        tape,
        q,
        k,
        v,
        _score_steps(attention),
        mask_dtype=mask_dtype,
        fp32_scores=attention.eager.scores_fp32,
        fp32_softmax=attention.eager.softmax_fp32,
        narrows=attention.eager.softmax_fp32 or isinstance(attention, Gpt2Attention),
        p_dropout=attention.dropout,
        returned=weights,
        named=ctx.attention_locals if isinstance(attention, (BloomAttention, MptAttention)) else None,
        every_step=isinstance(attention, BloomAttention),
        copied=copied,
    )
    if attention.eager.returned:
        returns(ctx, weights)
    else:
        ctx.unused_outputs += weights
    return copy(tape, out, "contiguous")


def _score_steps(attention: Attention) -> tuple[str, ...]:
    """Return the operators that the family applies to the scores before the softmax."""
    if attention.bidirectional:
        masked = attention.kernels.explicit_mask and attention.cross
        capped = ("scale", "cap") if attention.softcap else ("scale",)
        return (*capped, "add") if attention.window is not None or masked else capped
    if attention.softcap:
        return ("scale", "cap", "add")
    if isinstance(attention.extension, HeldMask):  # unscaled: torch.where by the layer's mask, then the model's
        return ("fill", "add")
    if attention.alibi:  # MPT: scale, bias, masked_fill; BLOOM: baddbmm scales and adds the bias by itself
        return ("add",) if attention.fused_qkv == "heads" else ("scale", "add", "fill")
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
