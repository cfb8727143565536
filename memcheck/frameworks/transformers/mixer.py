"""Token mixers that are not softmax attention: lightning attention, Mamba-2, gated delta nets.

Lightning attention (MiniMax) is replayed from transformers' code. Mamba-2 and the gated delta net run in fused kernels
(mamba-ssm, flash-linear-attention); what those keep is read from their autograd functions, their temporaries are the
tensors that their backward returns.

Sources: transformers 5.23 models/minimax/modeling_minimax.py, models/nemotron_h/modeling_nemotron_h.py,
models/qwen3_next/modeling_qwen3_next.py; mamba-ssm ops/triton/ssd_combined.py (MambaSplitConv1dScanCombinedFn);
flash-linear-attention ops/gated_delta_rule/chunk.py (ChunkGatedDeltaRuleFunction).
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import enter_tensor_parallel, leave_tensor_parallel, rms_norm_pieces
from memcheck.autograd.operator import copy, mul, operator, unary
from memcheck.autograd.tensor import Storage, Value, ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.delta_rule import convolve, delta_inputs, delta_net_fallback
from memcheck.frameworks.transformers.kimi_delta import kimi_delta, kimi_delta_fallback
from memcheck.frameworks.transformers.mamba1 import mamba1_fallback, mamba1_fused
from memcheck.frameworks.transformers.mamba2 import mamba2_fallback, multiplied
from memcheck.models.module_types import FalconH1Mixer
from memcheck.models.types import Mixer, Norm, ParameterTensor

LIGHTNING_BLOCK = 256
"""MiniMaxConfig.block_size."""
DELTA_CHUNK = 64
"""Chunk of flash-linear-attention's kernels."""


def recurrent_mixer(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Run a recurrent or convolutional token mixer, with its heads split over the tensor-parallel ranks.

    ``x``: [tokens, hidden]. Raises ``UnsupportedError`` for a kind that memcheck does not know.
    """
    local = enter_tensor_parallel(ctx, x)
    if mixer.kind not in MIXERS:
        raise UnsupportedError(
            f"memcheck has no model of {mixer.kind} layers", f"it has of {', '.join(MIXERS)}", "/training/framework"
        )
    if ctx.setting.recurrent_kernels == "fallback":
        return leave_tensor_parallel(ctx, _fallback(mixer.kind)(ctx, mixer, local))
    return leave_tensor_parallel(ctx, MIXERS[mixer.kind](ctx, mixer, local))


def _fallback(kind: str) -> Callable[[Context, Mixer, Value], Value]:
    """Return the forward of a recurrent mixer that transformers runs if the package with its fused kernels is missing.

    ``kind``: the mixer's name, such as ``mamba2``. Lightning attention has no fused kernels.

    Raises:
        UnsupportedError: memcheck has no model of this mixer without fused kernels.
    """
    if kind == "lightning":
        return MIXERS[kind]
    if kind in ("short-convolution", "plain-short-convolution"):
        return _short_convolution_fallback
    if kind == "gated-delta-net":
        return delta_net_fallback
    if kind == "kimi-delta":
        return kimi_delta_fallback
    if kind == "mamba2":
        return mamba2_fallback
    if kind == "mamba1":
        return mamba1_fallback
    raise UnsupportedError(
        f"memcheck has no model of {kind} layers without their fused kernels",
        "write `kernels: {ssm: fused}`, and install the packages",
        "/training/kernels/ssm",
    )


def _tensor(mixer: Mixer, leaf: str) -> ParameterTensor:
    """Return the parameter of the mixer with a name that ends with ``leaf``."""
    return next(t for t in mixer.tensors if t.name.removesuffix(".weight").endswith(leaf))


def _project(ctx: Context, mixer: Mixer, x: Value, leaf: str) -> Value:
    tensor = _tensor(mixer, leaf)
    return linear(ctx.tape, x, ctx.weights(tensor, bias=False), tensor.name)


def _small_parameters(ctx: Context, mixer: Mixer, *groups: str) -> tuple[Value, ...]:
    """Return the small parameters that a fused operation reads: convolution, decay, time-step bias, gated norm's
    weight.
    """
    return tuple(
        ctx.tape.parameter(ctx.parameter(t.name, t.shape)) for t in mixer.tensors if not t.linear and t.group in groups
    )


def _lightning(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Run MiniMaxLightningAttention: silu(qkv), linear attention in blocks of 256 tokens, norm, sigmoid gate,
    projection.

    ``x``: [tokens, hidden]. Source: transformers 5.23 models/minimax/modeling_minimax.py.
    """
    tape = ctx.tape
    qkv = unary(tape, _project(ctx, mixer, x, "qkv_proj"), "silu")
    heads, head_dim = ceil_div(mixer.heads, ctx.tp), mixer.head_dim
    mixed = _lightning_blocks(ctx, qkv, heads, head_dim)
    weight, _ = ctx.norm_weight(Norm("rmsnorm", heads * head_dim), "self_attn.norm")
    mixed = rms_norm_pieces(tape, mixed, weight)
    gate = unary(tape, _project(ctx, mixer, x, "output_gate"), "sigmoid")
    return _project(ctx, mixer, mul(tape, gate, mixed), "out_proj")


def _lightning_blocks(ctx: Context, qkv: Value, heads: int, head_dim: int) -> Value:
    """Compute MiniMax's lightning attention, block by block: ``qkv`` [tokens, 3 * heads * d] to [tokens, heads * d].

    Saved are qkv, each block's decayed scores, the running key-value products, the decayed keys of all blocks but the
    last, and the decayed queries of all blocks but the first. With several sequences torch.matmul also saves a copy of
    the values of all blocks but the last. All blocks are replayed as one operation.
    """
    tape = ctx.tape
    tokens, dtype, width = qkv.shape[0], qkv.dtype, heads * head_dim
    block = min(LIGHTNING_BLOCK, ctx.sequence)
    blocks = ceil_div(ctx.sequence, block)
    states = tape.new((ctx.batch * blocks, heads, head_dim, head_dim), dtype, "key-value products")
    scores = tape.new((tokens, heads, block), dtype, "decayed scores")
    tokens_but_one_block = tokens * (blocks - 1) // blocks
    tensors_kept = 3 if ctx.setting.batch > 1 else 2
    decayed = tape.new((tensors_kept * tokens_but_one_block, width), dtype, "decayed queries and keys")
    pieces = tape.new((tokens, width), dtype, "outputs of blocks")
    out = tape.value((tokens, width), dtype, "cat blocks")
    del pieces
    shape = qkv.shape

    def lightning_backward(grad: Storage) -> list[Storage | None]:
        """Make the gradients of one block's scores and of q, k and v, and join the latter three to that of qkv."""
        scores_grad = tape.new((tokens // blocks, heads, block), dtype, "scores backward")
        qkv_grads = [tape.new((tokens, width), dtype, "slice backward") for _ in range(3)]
        del scores_grad
        joined_grad = tape.new(shape, dtype, "split backward")
        qkv_grads.clear()
        return [joined_grad]

    return tape.record(out, (qkv,), lightning_backward, saves=(qkv.storage, states, scores, decayed))


def _mamba2_fused(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Run Mamba-2 with mamba-ssm: convolution, scan, gated norm and out_proj are one autograd function.

    ``x``: [tokens, hidden]. The function keeps in_proj's output, the scan's output and the norm's rstd. Backward
    computes the convolution again.
    """
    projected = _project(ctx, mixer, x, "in_proj")
    if isinstance(mixer, FalconH1Mixer):
        projected = multiplied(ctx, projected)
    inner_width = ceil_div(mixer.heads, ctx.tp) * mixer.head_dim
    saved = {"scan output": (inner_width, projected.dtype), "rstd": (1, "fp32")}
    scanned = _fused_function(ctx, mixer, projected, inner_width, saved, "norm")
    return _project(ctx, mixer, scanned, "out_proj")


def _delta_net(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Run a gated delta net with flash-linear-attention: projections, convolution, chunked delta rule, gated norm,
    output.

    ``x``: [tokens, hidden]. Kept are the projections' outputs, the convolution's input and output, normalised q and k,
    the decay, beta, the chunks' triangular inverses and the rule's output.
    """
    tape = ctx.tape
    heads = ceil_div(mixer.heads, ctx.tp)
    value_width = heads * mixer.head_dim
    names = {t.name.removesuffix(".weight").rpartition(".")[2] for t in mixer.tensors}
    gates: tuple[Value, ...]
    if "in_proj_qkvz" in names:
        projected = _project(ctx, mixer, x, "in_proj_qkvz")
        dtype, qkv_width = projected.dtype, projected.shape[-1] - value_width
        gates = (_project(ctx, mixer, x, "in_proj_ba"),)
        gating = projected
        convolved = _fused_function(ctx, mixer, projected, qkv_width, {"mixed qkv": (qkv_width, dtype)})
    else:  # Qwen 3.5, OLMo: the convolution reads what its own projections make
        projected, gating, *rest = delta_inputs(ctx, mixer, x)
        dtype, qkv_width = projected.dtype, projected.shape[-1]
        convolved, gates = _fused_function(ctx, mixer, projected, qkv_width, {}), tuple(rest)
    saved = {
        "convolution": (qkv_width, dtype),
        "normalised q, k": (qkv_width - value_width, dtype),
        "decay": (heads, "fp32"),
        "beta": (heads, dtype),
        "inverses of chunks": (heads * DELTA_CHUNK, dtype),
        "rule output": (value_width, dtype),
        "rstd": (heads, "fp32"),
    }
    kept_tensors = tuple(tape.new((x.shape[0], width), kind, name) for name, (width, kind) in saved.items())
    out = tape.value((x.shape[0], value_width), dtype, "gated norm")
    norms = _small_parameters(ctx, mixer, "norm")
    inputs = (convolved, *gates, gating)
    saves = (*kept_tensors, *(v.storage for v in inputs[1:]))
    gradients = [(value.shape, dtype, "delta rule backward") for value in inputs]
    out = operator(tape, out, (*inputs, *norms), [*gradients, *["norm backward"] * len(norms)], saves=saves)
    del kept_tensors, inputs, convolved, gates, gating, projected
    return _project(ctx, mixer, out, mixer.output)


def _fused_function(
    ctx: Context, mixer: Mixer, x: Value, width: int, extra: dict[str, tuple[int, str]], *also: str
) -> Value:
    """Run a fused autograd function of ``x`` and the mixer's small parameters, and return [tokens, ``width``].

    It keeps x and the tensors of ``extra``, by name: (columns, dtype) of [tokens, columns]. ``also``: further groups of
    parameters that the function reads. Backward computes the convolution again.
    """
    tape = ctx.tape
    rows = x.shape[0]
    parameters = _small_parameters(ctx, mixer, "mixer", *also) if width else ()
    saved = (x.storage, *(tape.new((rows, size), dtype, name) for name, (size, dtype) in extra.items()))
    out = tape.value((rows, width), x.dtype, mixer.kind)
    shape, dtype = x.shape, x.dtype
    parameter_grads = [(parameter.shape, parameter.dtype) if parameter.needs_grad else None for parameter in parameters]

    def fused_backward(grad: Storage) -> list[Storage | None]:
        """Compute the convolution again, and return the gradients of ``x`` and of the parameters."""
        recomputed = tape.new((rows, width), dtype, "recomputed convolution")
        result = tape.new(shape, dtype, mixer.kind + " backward")
        del recomputed
        return [result, *(tape.new(*spec, "backward") if spec else None for spec in parameter_grads)]

    return tape.record(out, (x, *parameters), fused_backward, saves=saved)


def _short_convolution(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """LFM 2 with causal-conv1d: B * x, one convolution that keeps its input alone, C times its output."""
    return _gated_convolution(ctx, mixer, x, fused=True)


def _short_convolution_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """LFM 2 without causal-conv1d: the padded output of PyTorch's convolution exists, too."""
    return _gated_convolution(ctx, mixer, x, fused=False)


def _gated_convolution(ctx: Context, mixer: Mixer, x: Value, *, fused: bool) -> Value:
    """Run Lfm2ShortConv: in_proj makes B, C and x; then ``out_proj(C * conv(B * x))``.

    ``x``: [tokens, hidden]. ``fused``: causal-conv1d runs the convolution; else PyTorch's, which pads its output.
    """
    tape = ctx.tape
    names = {t.name.rpartition("conv.")[2]: t for t in mixer.tensors}
    bias = "bias" in names
    bcx = linear(tape, x, ctx.weights(names["in_proj.weight"], "in_proj.bias" in names), "in_proj")
    third = (ctx.tokens, bcx.shape[-1] // 3)
    b_gate, c_gate, conv_input = tape.views(bcx, third, third, third)
    conv_output = mul(tape, b_gate, conv_input)
    conv_output = convolve(ctx, names["weight"], names["bias"] if bias else None, conv_output, "", fused=fused)
    gated = copy(tape, mul(tape, c_gate, conv_output), "contiguous")
    del conv_output
    result = linear(tape, gated, ctx.weights(names["out_proj.weight"], "out_proj.bias" in names), "out_proj")
    del bcx, b_gate, c_gate, conv_input, gated
    return result


def _mamba1(ctx: Context, mixer: Mixer, x: Value) -> Value:
    return mamba1_fused(ctx, mixer, x)


def _kimi_delta(ctx: Context, mixer: Mixer, x: Value) -> Value:
    return kimi_delta(ctx, mixer, x)


MIXERS: dict[str, Callable[[Context, Mixer, Value], Value]] = {
    "lightning": _lightning,
    "mamba1": _mamba1,
    "mamba2": _mamba2_fused,
    "gated-delta-net": _delta_net,
    "kimi-delta": _kimi_delta,
    "plain-short-convolution": _short_convolution_fallback,
    "short-convolution": _short_convolution,
}
"""The forward pass of every ``Mixer.kind``."""
