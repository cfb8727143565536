"""Modules that many models share, as transformers writes them: norms, activations, one matrix with its adapters."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, mul, power, scale, shift, unary
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import (
    fused_norm,
    l2_norm_pieces,
    layer_norm_fp32,
    layer_norm_one_plus,
    layer_norm_per_head,
    layer_norm_pieces,
    layer_norm_rounded,
    liger_rms_norm,
    rms_norm_pieces,
    rms_norm_unrounded,
)
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Tape, Value
from memcheck.models.feed_forward_types import ClippedMlp
from memcheck.models.types import Mlp, Norm, ParameterTensor
from memcheck.models.vision import ClippedTowerAttention, TowerAttention


def normalise(ctx: Context, norm: Norm | None, x: Value, name: str = "norm") -> Value:
    """Apply a norm as the family's transformers code computes it; without a norm, return ``x``.

    RMSNorm is several operators unless Liger replaces it, LayerNorm is one kernel unless the family writes its own.
    ``x``: [tokens, size]. ``name``: of the module, which its parameters begin with.
    """
    if norm is None:
        return x
    tape = ctx.tape
    weight, bias = ctx.norm_weight(norm, name)
    kind = norm.kind
    if kind == "rmsnorm-t5":
        return rms_norm_unrounded(tape, x, weight)
    liger = ctx.setting.liger
    replaced = liger is not None and liger.rms_norm and (name != "qk_norm" or liger.head_norms)
    if liger is not None and replaced and kind.startswith("rmsnorm"):
        return liger_rms_norm(tape, x, weight, in_place=liger.norm_in_place)
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


def _layer_norm(ctx: Context, norm: Norm, x: Value, affine: tuple[Parameter | None, Parameter | None]) -> Value:
    """Apply a layer norm as its kind writes it. ``x``: [tokens, size]. ``affine``: weight and bias, None for none."""
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


def activation(tape: Tape, x: Value, name: str) -> Value:
    """Apply an activation function by its name in transformers/activations.py: one kernel, or operator by operator."""
    if name in ("gelu_new", "gelu_accurate"):
        return _new_gelu(tape, x)
    if name == "gelu_fast":
        return _fast_gelu(tape, x)
    if name == "quick_gelu":  # QuickGELUActivation: input * sigmoid(1.702 * input)
        gate = unary(tape, scale(tape, x), "sigmoid")
        return mul(tape, x, gate)
    if name == "esm-gelu":  # modeling_esm.py: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
        half = scale(tape, x)
        return mul(tape, half, shift(tape, unary(tape, scale(tape, x), "erf")))
    if name == "bloom-gelu":
        return _bloom_gelu(tape, x)
    if name == "relu2":
        return power(tape, unary(tape, x, "relu"))
    return unary(tape, x, "silu" if name == "swish" else name)


def _new_gelu(tape: Tape, x: Value) -> Value:
    """Compute NewGELUActivation: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))."""
    half = scale(tape, x)
    # autocast runs pow in fp32 (the cuda fp32 list of aten/src/ATen/autocast_mode.h)
    cube = power(tape, under_autocast_fp32(tape, x))
    cube = scale(tape, cube)
    inner = add(tape, x, cube)
    del cube, x
    inner = scale(tape, inner)
    t = unary(tape, inner, "tanh")
    del inner
    one_plus = shift(tape, t)
    del t
    return mul(tape, half, one_plus)


def _fast_gelu(tape: Tape, x: Value) -> Value:
    """Compute FastGELUActivation: 0.5 * x * (1 + tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))."""
    half = scale(tape, x)
    first = scale(tape, x)
    square = mul(tape, scale(tape, x), x)
    del x
    inner = shift(tape, square)
    del square
    inner = mul(tape, first, inner)
    del first
    t = unary(tape, inner, "tanh")
    del inner
    one_plus = shift(tape, t)
    del t
    return mul(tape, half, one_plus)


def _bloom_gelu(tape: Tape, x: Value) -> Value:
    """Apply BloomGelu, an autograd Function that saves its input and computes the tanh polynomial in each direction.

    ``x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))`` (modeling_bloom.py, bloom_gelu_forward).
    """
    shape, dtype = x.shape, x.dtype
    half, scaled = tape.new(shape, dtype, "mul"), tape.new(shape, dtype, "mul")
    first = tape.new(shape, dtype, "mul")
    square = tape.new(shape, dtype, "mul")
    del first, half, scaled
    out = tape.value(shape, dtype, "bloom gelu")
    del square
    label = "bloom gelu backward"
    return operator(tape, out, x, label, saves=(x,), temporaries=[(shape, dtype, label)] * 4)


def under_autocast_fp32(tape: Tape, x: Value) -> Value:
    """Return ``x`` in fp32 if autocast is on: it casts the inputs of operators on its fp32 list."""
    return cast(tape, x, "fp32") if tape.autocast else x


def matrix(
    ctx: Context, module: Mlp | TowerAttention, x: Value, tensor: ParameterTensor, *, bias: bool = False
) -> Value:
    """Compute the product with one matrix of a module, between two clamps if it has bounds (Gemma4ClippableLinear)."""
    weights = ctx.weights(tensor, module.bias or bias, adaptable=not isinstance(module, Mlp) or module.adaptable)
    if not isinstance(module, (ClippedMlp, ClippedTowerAttention)):
        return linear(ctx.tape, x, weights, tensor.name)
    from memcheck.autograd.elementwise import clamp

    return clamp(ctx.tape, linear(ctx.tape, clamp(ctx.tape, x, 2), weights, tensor.name), 2)
