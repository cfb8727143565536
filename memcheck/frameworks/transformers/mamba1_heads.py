"""Zamba's mixer: Mamba's first scan for each of a few heads, which have matrices of their own for steps, B and C.

Source: transformers 5.23 models/zamba/modeling_zamba.py (ZambaMambaMixer); the scan of each head is Mamba's.
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, cat, convert_weight, copy, mul, scale, unary
from memcheck.autograd.indexing import slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.mamba1 import Channels, fused_scan, rows_of_tokens, scan
from memcheck.frameworks.transformers.scan import convolve
from memcheck.models.types import Mixer, ParameterTensor


def mamba1_heads(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """in_proj, convolution, products head by head, a scan of each, out_proj; variables live to the module's end."""
    if ctx.tp > 1 or ctx.setting.context > 1:
        said = "memcheck has no model of Zamba's mixer on several ranks"
        raise UnsupportedError(said, "leave tensor and context at 1", "/parallelism")
    tape, fused = ctx.tape, ctx.setting.ssm != "fallback"
    tensors = {t.name.rpartition("mamba.")[2]: t for t in mixer.tensors}
    dtype, inner = x.dtype, mixer.heads * mixer.head_dim
    sizes = Channels(mixer.head_dim, tensors["dt_proj_weight"].shape[2], mixer.key_dim)
    projected = _project(ctx, tensors, "in_proj", x)
    del x
    half = (ctx.tokens, inner)
    channels, gate = tape.views(projected, half, half)
    state = copy(tape, channels, "contiguous")
    del channels
    state = convolve(ctx, tensors["conv1d.weight"], tensors.get("conv1d.bias"), state, "silu", fused=fused)
    rows = ctx.tokens * mixer.heads
    joint = _by_head(ctx, tensors["x_proj_weight"], state, (rows, sizes.rank + 2 * sizes.state))
    parts = tape.views(joint, (rows, sizes.rank), (rows, sizes.state), (rows, sizes.state))
    step = _by_head(ctx, tensors["dt_proj_weight"], parts[0], half)
    bias, decay = (_wide(ctx, tensors[name]) for name in ("dt_proj_bias", "A_log"))
    rate = scale(tape, unary(tape, decay, "exp"), "neg")
    del decay
    skip = _leaf(ctx, tensors["D"])
    outputs = []
    for _ in range(mixer.heads):
        each = (state, step, gate, *parts[1:], bias, rate, skip)
        one = [slices(tape, v, (v.shape[0] // mixer.heads, *v.shape[1:]))[0] for v in each]
        outputs.append(_scanned(ctx, sizes, one, fused=fused))
        del each, one
    out = cat(tape, tuple(outputs), half, "cat heads")
    result = _project(ctx, tensors, "out_proj", rows_of_tokens(ctx, cast(tape, out, dtype)))
    del projected, gate, state, joint, parts, step, bias, rate, skip, outputs, out
    return result


def _scanned(ctx: Context, sizes: Channels, one: list[Value], *, fused: bool) -> Value:
    """``mamba_selective_scan`` of a head, times its gate."""
    tape, rows = ctx.tape, (ctx.tokens, sizes.inner)
    state, step, gate = (Value(v.storage, rows, v.dtype, v.origin) for v in one[:3])
    keys, queries, bias, rate, skip = one[3:]
    skip = cast(tape, skip, "fp32")
    if fused:
        return fused_scan(ctx, sizes, (state, step, rate, keys, queries, gate, skip, bias))
    out = scan(ctx, sizes, state, (step, bias), (rate, skip), (keys, queries))
    return mul(tape, out, unary(tape, gate, "silu"))


def _by_head(ctx: Context, tensor: ParameterTensor, x: Value, shape: tuple[int, ...]) -> Value:
    """``weight[:, None] @ x``: of several sequences torch.matmul copies the weight for each, and x to fold heads."""
    tape, several = ctx.tape, ctx.batch > 1
    weight = _leaf(ctx, tensor)
    weight = cast(tape, weight, tape.autocast) if tape.autocast else weight
    if several:
        weight = _expanded(tape, weight, ctx.batch)
    return kernels.batched(tape, weight, x, shape, tensor.name, (False, several))


def _expanded(tape: Tape, x: Value, times: int) -> Value:
    """A copy for each sequence; its gradient is summed over them."""
    small, dtype = x.shape, x.dtype
    return operator(tape, tape.value((times * small[0], *small[1:]), dtype, "expand"), x, "sum")


def _leaf(ctx: Context, tensor: ParameterTensor) -> Value:
    return ctx.tape.parameter(ctx.parameter(tensor.name, tensor.shape))


def _wide(ctx: Context, tensor: ParameterTensor) -> Value:
    """A parameter in fp32."""
    return convert_weight(ctx.tape, _leaf(ctx, tensor), "fp32")


def _project(ctx: Context, tensors: dict[str, ParameterTensor], name: str, x: Value) -> Value:
    tensor = tensors[name + ".weight"]
    return linear(ctx.tape, x, ctx.weights(tensor, name + ".bias" in tensors), tensor.name)
