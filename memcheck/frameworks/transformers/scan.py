"""Pieces of recurrent layers as transformers writes them in PyTorch's own operations, without fused kernels.

Sources: transformers 5.23 models/qwen3_5/modeling_qwen3_5.py (causal_conv1d_fn, Qwen3_5RMSNormGated, l2norm),
models/mamba2/modeling_mamba2.py; torch derivatives.yaml (convolution, constant_pad_nd, select).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, copy, mean_rows, mul, operator, power, shift, slices, unary
from memcheck.autograd.tensor import Parameter, Tape, Value
from memcheck.models.types import ParameterTensor


def contiguous_as(tape: Tape, x: Value, dtype: str) -> Value:
    """Copy ``x.transpose(...).to(dtype, memory_format=contiguous)``; it copies even if the dtype is the same."""
    return copy(tape, x, "contiguous") if x.dtype == dtype else cast(tape, x, dtype)


def pad(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Pad the end of the sequence with ``F.pad``, which copies even if it adds nothing; so does its backward."""
    return operator(tape, tape.value(shape, x.dtype, "pad"), x, "pad backward")


def sum_rows(tape: Tape, x: Value, shape: tuple[int, ...], label: str = "sum") -> Value:
    """Compute ``x.sum(dim)``. Autograd keeps nothing, and the gradient is an expanded view."""
    return operator(tape, tape.value(shape, x.dtype, label), x, GRAD_UNCHANGED)


def select(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Take ``x[:, :, i]``, a view. Its gradient is written into zeros of x's size."""
    return slices(tape, x, shape)[0]


def write(tape: Tape, target: Value, part: Value) -> Value:
    """Run ``target[:, :, i] = part`` in place. Its backward, CopySlices, copies the whole gradient and the part's."""
    out = Value(target.storage, target.shape, target.dtype)
    return operator(tape, out, (target, part), ["CopySlices", (part.shape, target.dtype, "CopySlices")])


def convolve(
    ctx: Context,
    weight_tensor: ParameterTensor,
    bias_tensor: ParameterTensor | None,
    x: Value,
    act: str,
    *,
    fused: bool = False,
) -> Value:
    """Run a causal convolution over tokens: a grouped convolution with padding, a slice to the sequence, an activation.

    ``x``: [tokens, channels]; so is what is returned. The convolution saves its input and its weight, the activation
    saves the padded output. ``act``: name of the activation; empty means none. ``fused``: causal-conv1d's kernel runs
    instead, which neither pads nor casts.
    """
    tape = ctx.tape
    kernel, input_dtype = weight_tensor.shape[-1], x.dtype
    channels = x.shape[-1]
    weight = tape.parameter(ctx.parameter(weight_tensor.name, (channels, *weight_tensor.shape[1:])))
    bias_value = tape.parameter(ctx.parameter(bias_tensor.name, (channels,))) if bias_tensor is not None else None
    x = x if fused else cast(tape, x, weight.dtype)
    if tape.autocast:
        x = cast(tape, x, tape.autocast)
        weight = cast(tape, weight, tape.autocast)
        bias_value = cast(tape, bias_value, tape.autocast) if bias_value is not None else None
    rows = ctx.tokens if fused else ctx.batch * (ctx.sequence + kernel - 1)
    out = convolution(tape, x, weight, bias_value, (rows, channels))
    del x, weight, bias_value
    unpadded = out if fused else slices(tape, out, (ctx.tokens, channels))[0]
    del out
    if act:
        unpadded = unary(tape, unpadded, act)
    return cast(tape, unpadded, input_dtype)


def convolution(tape: Tape, x: Value, weight: Value, bias: Value | None, shape: tuple[int, ...]) -> Value:
    """Run a grouped convolution to ``shape``. Autograd keeps its input and its weight."""
    out = tape.value(shape, x.dtype, "conv1d")
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return operator(tape, out, inputs, "conv1d backward", saves=(x, weight))


def l2_norm(tape: Tape, x: Value, rows: tuple[int, ...]) -> Value:
    """Normalise rows: ``x * rsqrt((x * x).sum(-1, keepdim=True) + eps)``. ``rows``: shape of the sums."""
    rstd = unary(tape, shift(tape, sum_rows(tape, mul(tape, x, x), rows)), "rsqrt")
    return mul(tape, x, rstd)


def gated_norm(tape: Tape, x: Value, gate: Value, weight: Parameter, *, act: str = "silu", wide: bool = False) -> Value:
    """Apply an RMSNorm over each head, and multiply by the activation of an fp32 copy of the gate.

    ``x``, ``gate``: [tokens * heads, head width]. ``wide``: the weight multiplies in fp32 (Kimi), else after the cast
    back.
    """
    input_dtype = x.dtype
    x = cast(tape, x, "fp32")
    rstd = unary(tape, shift(tape, mean_rows(tape, power(tape, x))), "rsqrt")
    x = mul(tape, x, rstd)
    del rstd
    if not wide:
        x = cast(tape, x, input_dtype)
    x = mul(tape, tape.parameter(weight), x)
    activated_gate = unary(tape, cast(tape, gate, "fp32"), act)
    x = mul(tape, x, activated_gate)
    del activated_gate
    return cast(tape, x, input_dtype)
