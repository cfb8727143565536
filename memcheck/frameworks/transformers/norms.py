"""Which operations a normalisation of transformers' modeling files is made of, by its kind."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, mul, unary
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import (
    fused_norm,
    l2_norm_pieces,
    layer_norm_fp32,
    layer_norm_one_plus,
    layer_norm_per_head,
    layer_norm_pieces,
    layer_norm_rounded,
    rms_norm_pieces,
    rms_norm_unrounded,
)
from memcheck.autograd.tensor import Parameter, Value
from memcheck.models.parts.matrices import norm_tensors
from memcheck.models.types import Norm


def normalise(ctx: Context, norm: Norm | None, x: Value, name: str = "norm") -> Value:
    """RMSNorm in pieces, LayerNorm in one kernel unless a model writes its own."""
    if norm is None:
        return x
    tape = ctx.tape
    weight, bias = ctx.norm_weight(norm, name)
    kind = norm.kind
    if kind == "rmsnorm-t5":
        return rms_norm_unrounded(tape, x, weight)
    liger = ctx.setting.liger
    reached = liger is not None and liger.rms_norm and (name != "qk_norm" or liger.head_norms)
    if liger is not None and reached and kind.startswith("rmsnorm"):
        from memcheck.frameworks.transformers.liger import rms_norm

        return rms_norm(tape, x, weight, in_place=liger.norm_in_place)
    if kind == "rmsnorm-narrow":
        x = cast(tape, x, ctx.setting.params)
    if norm.gate_rank:
        return _gated_norm(ctx, norm, rms_norm_pieces(tape, x, weight))
    if kind.startswith("rmsnorm"):
        return rms_norm_pieces(
            tape,
            x,
            weight,
            unit_offset=kind == "rmsnorm-unit-offset",
            weight_in_fp32=kind == "rmsnorm-fp32-weight",
        )
    if kind == "l2":
        return l2_norm_pieces(tape, x)
    return _layer_norm(ctx, norm, x, (weight, bias))


def _gated_norm(ctx: Context, norm: Norm, y: Value) -> Value:
    """AXK2GatedRMSNorm: ``(y * sigmoid(fc2(silu(fc1(y))).float())).to(y.dtype)``."""
    tape = ctx.tape
    first, second = (t for t in norm_tensors(norm) if t.linear)
    h = unary(tape, linear(tape, y, ctx.replicated(first), first.name), "silu")
    h = linear(tape, h, ctx.replicated(second), second.name)
    opened = unary(tape, cast(tape, h, "fp32"), "sigmoid")
    del h
    return cast(tape, mul(tape, y, opened), y.dtype)


def _layer_norm(ctx: Context, norm: Norm, x: Value, affine: tuple[Parameter | None, Parameter | None]) -> Value:
    tape = ctx.tape
    weight, bias = affine
    if norm.kind == "layernorm-pieces":
        return layer_norm_pieces(tape, x, weight)
    if norm.kind == "layernorm-rounded" and weight is not None and bias is not None:
        return layer_norm_rounded(tape, x, weight, bias)
    if norm.kind == "layernorm-fp32":
        return layer_norm_fp32(tape, x)
    if norm.kind == "layernorm-1p":
        return layer_norm_one_plus(tape, x, weight, bias)
    if norm.rows > 1:
        return layer_norm_per_head(tape, x, weight, bias)
    return fused_norm(tape, x, weight, bias, norm.kind)
