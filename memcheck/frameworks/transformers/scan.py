"""Pieces of recurrent layers as transformers writes them in PyTorch's own operations, without fused kernels.

Sources: transformers 5.23 models/qwen3_5/modeling_qwen3_5.py (causal_conv1d_fn, Qwen3_5RMSNormGated, l2norm),
models/mamba2/modeling_mamba2.py; torch derivatives.yaml (convolution, constant_pad_nd, select).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, copy, mean_rows, mul, power, shift, unary
from memcheck.autograd.indexing import slices
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Parameter, Tape, Value
from memcheck.models.types import ParameterTensor


def contiguous_as(tape: Tape, x: Value, dtype: str) -> Value:
    """``x.transpose(...).to(dtype, memory_format=contiguous)``: a copy whatever the dtype was."""
    return copy(tape, x, "contiguous") if x.dtype == dtype else cast(tape, x, dtype)


def pad(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``F.pad`` at the end of the sequence: a copy even if it adds no column; so is its gradient."""
    return operator(tape, tape.value(shape, x.dtype, "pad"), x, "pad backward")


def sum_rows(tape: Tape, x: Value, shape: tuple[int, ...], label: str = "sum") -> Value:
    """``x.sum(dim)``: keeps nothing; its gradient is an expanded view."""
    return operator(tape, tape.value(shape, x.dtype, label), x, PASSED)


def select(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``x[:, :, i]``: a view, whose gradient is written into zeros of x's size."""
    return slices(tape, x, shape)[0]


def write(tape: Tape, target: Value, part: Value) -> Value:
    """``target[:, :, i] = part``: in place; backward copies the whole gradient, and the part's (CopySlices)."""
    out = Value(target.storage, target.shape, target.dtype)
    return operator(tape, out, (target, part), ["CopySlices", (part.shape, target.dtype, "CopySlices")])


def convolve(
    ctx: Context,
    tensor: ParameterTensor,
    bias: ParameterTensor | None,
    x: Value,
    act: str,
    *,
    fused: bool = False,
) -> Value:
    """``causal_conv1d_fn`` in PyTorch: a grouped convolution padded by its kernel, cut back, then the activation.

    The convolution keeps its input and its weight, the activation the padded output. ``fused``: causal-conv1d's kernel,
    which pads nothing and casts nothing.
    """
    tape = ctx.tape
    kernel, narrow = tensor.shape[-1], x.dtype
    channels = x.shape[-1]
    weight = tape.parameter(ctx.parameter(tensor.name, (channels, *tensor.shape[1:])))
    offset = tape.parameter(ctx.parameter(bias.name, (channels,))) if bias is not None else None
    x = x if fused else cast(tape, x, weight.dtype)
    if tape.autocast:
        x = cast(tape, x, tape.autocast)
        weight = cast(tape, weight, tape.autocast)
        offset = cast(tape, offset, tape.autocast) if offset is not None else None
    rows = ctx.tokens if fused else ctx.batch * (ctx.sequence + kernel - 1)
    out = convolution(tape, x, weight, offset, (rows, channels))
    del x, weight, offset
    cut = out if fused else slices(tape, out, (ctx.tokens, channels))[0]
    del out
    if act:
        cut = unary(tape, cut, act)
    return cast(tape, cut, narrow)


def convolution(tape: Tape, x: Value, weight: Value, bias: Value | None, shape: tuple[int, ...]) -> Value:
    """A grouped convolution to ``shape``: keeps what it reads and its weight."""
    out = tape.value(shape, x.dtype, "conv1d")
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return operator(tape, out, inputs, "conv1d backward", saves=(x, weight))


def l2_norm(tape: Tape, x: Value, rows: tuple[int, ...]) -> Value:
    """``x * rsqrt((x * x).sum(-1, keepdim=True) + eps)``."""
    inverse = unary(tape, shift(tape, sum_rows(tape, mul(tape, x, x), rows)), "rsqrt")
    return mul(tape, x, inverse)


def gated_norm(tape: Tape, x: Value, gate: Value, weight: Parameter, *, act: str = "silu", wide: bool = False) -> Value:
    """An RMSNorm over each head, times an activation of an fp32 copy of the gate.

    ``wide``: the weight multiplies in fp32 (Kimi); else after the cast back.
    """
    source = x.dtype
    x = cast(tape, x, "fp32")
    inverse = unary(tape, shift(tape, mean_rows(tape, power(tape, x))), "rsqrt")
    x = mul(tape, x, inverse)
    del inverse
    if not wide:
        x = cast(tape, x, source)
    x = mul(tape, tape.parameter(weight), x)
    opened = unary(tape, cast(tape, gate, "fp32"), act)
    x = mul(tape, x, opened)
    del opened
    return cast(tape, x, source)
