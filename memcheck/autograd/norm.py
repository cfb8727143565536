"""Normalisations as the frameworks write them: in pieces (transformers) or in one kernel (torch, TransformerEngine)."""

from __future__ import annotations

from memcheck.autograd.elementwise import (
    add_bias,
    cast,
    cat,
    convert_weight,
    divide_rows,
    mean_rows,
    mul,
    power,
    shift,
    subtract_rows,
    unary,
)
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value

MULTIPROCESSORS_MOST = 304
"""The backward of a norm adds up its weight's gradient with a row of partial sums for each multiprocessor: 304 on an
MI300X, more than on any other supported GPU. They are below 5 MB and live inside that kernel."""


def rms_norm_pieces(
    tape: Tape, x: Value, weight: Parameter | None, *, unit_offset: bool = False, weight_in_fp32: bool = False
) -> Value:
    """Run transformers' LlamaRMSNorm: x in fp32, x ** 2, mean, rsqrt, product, back to x's dtype, times weight.

    ``unit_offset``: as in Gemma, (1 + weight) multiplies in fp32 before the cast back. ``weight_in_fp32``: as in OLMo 2
    and GPT-OSS, the weight does. The fp32 product is a local variable of the module (``hidden_states``): it lives until
    the result exists.
    """
    source = x.dtype
    wide = cast(tape, x, "fp32")
    variance = mean_rows(tape, power(tape, wide))
    inverse = unary(tape, variance, "rsqrt")
    normed = mul(tape, wide, inverse)
    del wide, inverse
    if weight is None:
        return cast(tape, normed, source)
    if unit_offset:
        normed = mul(tape, normed, cast_offset(tape, weight))
        return cast(tape, normed, source)
    if weight_in_fp32:
        return cast(tape, mul(tape, tape.parameter(weight), normed), source)
    return mul(tape, tape.parameter(weight), cast(tape, normed, source))


def rms_norm_unrounded(tape: Tape, x: Value, weight: Parameter | None) -> Value:
    """Run T5LayerNorm: the variance of an fp32 copy, its product with the input, a cast to the weight's dtype.

    The product is assigned to the input's variable (``hidden_states``), so that the module no longer holds the input.
    """
    wide = cast(tape, x, "fp32")
    variance = mean_rows(tape, power(tape, wide))
    del wide
    inverse = unary(tape, variance, "rsqrt")
    normed = mul(tape, x, inverse)
    del x, inverse
    if weight is None:
        return normed
    return mul(tape, tape.parameter(weight), cast(tape, normed, weight.dtype))


def l2_norm_pieces(tape: Tape, x: Value) -> Value:
    """Compute Llama4TextL2Norm: an RMSNorm in fp32 without weight, its input passed as a temporary."""
    source = x.dtype
    wide = cast(tape, x, "fp32")
    del x
    inverse = unary(tape, mean_rows(tape, power(tape, wide)), "rsqrt")
    return cast(tape, mul(tape, wide, inverse), source)


def layer_norm_pieces(tape: Tape, x: Value, weight: Parameter | None) -> Value:
    """Compute CohereLayerNorm: mean, difference (twice), square, mean, rsqrt, product, fp32 weight, cast back."""
    source = x.dtype
    wide = cast(tape, x, "fp32")
    del x
    mean = mean_rows(tape, wide)
    variance = mean_rows(tape, power(tape, subtract_rows(tape, wide, mean)))
    hidden = mul(tape, subtract_rows(tape, wide, mean), unary(tape, variance, "rsqrt"))
    del wide
    if weight is not None:
        hidden = mul(tape, convert_weight(tape, tape.parameter(weight), "fp32"), hidden)
    return cast(tape, hidden, source)


def layer_norm_rounded(tape: Tape, x: Value, weight: Parameter, bias: Parameter) -> Value:
    """Compute DebertaLayerNorm: in fp32 to the quotient by a root, which is cast back; then the weight and the bias."""
    source = x.dtype
    wide = cast(tape, x, "fp32")
    del x
    mean = mean_rows(tape, wide)
    variance = mean_rows(tape, power(tape, subtract_rows(tape, wide, mean)))
    root = unary(tape, shift(tape, variance, "variance + eps"), "sqrt")
    hidden = divide_rows(tape, subtract_rows(tape, wide, mean), root)
    del wide
    hidden = cast(tape, hidden, source)
    return add_bias(tape, mul(tape, tape.parameter(weight), hidden), tape.parameter(bias))


def layer_norm_fp32(tape: Tape, x: Value) -> Value:
    """OlmoLayerNorm: F.layer_norm without weight on an fp32 copy."""
    return cast(tape, fused_norm(tape, cast(tape, x, "fp32"), None, None, "layernorm"), x.dtype)


def layer_norm_one_plus(tape: Tape, x: Value, weight: Parameter | None, bias: Parameter | None) -> Value:
    """Compute NemotronLayerNorm1P: F.layer_norm with weight + 1, in autocast's dtype (autocast is switched off
    inside).
    """
    if weight is None:
        return fused_norm(tape, x, weight, bias, "layernorm")
    autocast, tape.autocast = tape.autocast, None
    if autocast:
        x = cast(tape, x, autocast)
    shifted = tape.new(weight.shape, x.dtype, "weight + 1")
    out = fused_norm(tape, x, weight, bias, "layernorm", extra=shifted)
    tape.autocast = autocast
    return out


def layer_norm_per_head(tape: Tape, x: Value, weight: Parameter | None, bias: Parameter | None) -> Value:
    """Compute StableLmLayerNormPerHead: split by heads, one layer_norm each, cat.

    The small norms are replayed as one: each keeps its own output's input, a view of x, and its statistics.
    """
    normed = fused_norm(tape, x, weight, bias, "layernorm")
    return cat(tape, (normed,), x.shape, "cat heads")


def cast_offset(tape: Tape, weight: Parameter) -> Value:
    """``1.0 + weight.float()``: a small fp32 vector."""
    return operator(tape, tape.value(weight.shape, "fp32", "1 + weight"), tape.parameter(weight), "to backward")


def fused_norm(
    tape: Tape,
    x: Value,
    weight: Parameter | None,
    bias: Parameter | None,
    kind: str,
    *,
    extra: Storage | None = None,
) -> Value:
    """Run ``F.layer_norm`` or ``F.rms_norm`` in one kernel: saves its input, and rstd (and mean) per row in fp32.

    ``kind``: ``layernorm...`` or ``rmsnorm...``. ``extra``: a weight that was computed for this call, and is saved,
    too. Under autocast layer_norm runs in fp32. Source: aten/src/ATen/native/layer_norm.cpp and _fused_rms_norm.
    """
    if tape.autocast and kind.startswith("layernorm"):
        x = cast(tape, x, "fp32")
    out = tape.value(x.shape, x.dtype, kind)
    rows = x.shape[:-1]
    inputs = (x, *(tape.parameter(parameter) for parameter in (weight, bias) if parameter is not None))
    if not any(v.origin is not None for v in inputs):
        return out
    stats = [tape.new(rows, "fp32", kind + " rstd")]
    if kind.startswith("layernorm"):
        stats.append(tape.new(rows, "fp32", kind + " mean"))
    return operator(tape, out, inputs, kind + " backward", saves=(x, *stats, extra))


def liger_rms_norm(tape: Tape, x: Value, weight: Parameter | None, *, in_place: bool) -> Value:
    """Run LigerRMSNormFunction: saves its input and an fp32 rstd per row; the result has the input's dtype.

    ``in_place``: backward writes the input's gradient over the result's gradient.
    """
    out = tape.value(x.shape, x.dtype, "liger rms_norm")
    inputs = (x,) if weight is None else (x, tape.parameter(weight))
    if all(v.origin is None for v in inputs):
        return out
    kept = (x.storage, tape.new(x.shape[:-1], "fp32", "rms_norm rstd"))
    shape, dtype, trained = x.shape, x.dtype, weight is not None and weight.requires_grad

    def run(grad: Storage) -> list[Storage | None]:
        """Return the gradients of the input and the weight.

        The kernel sums the weight's gradient in one row of partial sums per multiprocessor, which live until it ends.
        """
        partial = tape.new((MULTIPROCESSORS_MOST, shape[-1]), "fp32", "rms_norm partial sums") if trained else None
        gradients: list[Storage | None] = [grad if in_place else tape.new(shape, dtype, "rms_norm backward")]
        if weight is not None:
            summed = tape.new(weight.shape, "fp32", "sum") if trained else None
            if summed is not None and weight.dtype != "fp32":
                summed = tape.new(weight.shape, weight.dtype, "to")
            gradients.append(summed)
        del partial
        return gradients

    return tape.record(out, inputs, run, saves=kept)
