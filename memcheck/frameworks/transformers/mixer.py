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
from memcheck.autograd.elementwise import copy, mul, unary
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.parallel import enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.tensor import Storage, Value
from memcheck.errors import UnsupportedError
from memcheck.models.mixer_types import FalconH1Mixer
from memcheck.models.types import Mixer, Norm, ParameterTensor

LIGHTNING_BLOCK = 256
"""MiniMaxConfig.block_size."""
DELTA_CHUNK = 64
"""Chunk of flash-linear-attention's kernels."""


def recurrent_mixer(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """The mixer of this kind, cut by heads under tensor parallelism."""
    inside = enter_tensor_parallel(ctx, x)
    if mixer.kind not in MIXERS:
        raise UnsupportedError(
            f"memcheck has no model of {mixer.kind} layers", f"it has of {', '.join(MIXERS)}", "/training/framework"
        )
    if ctx.setting.ssm == "fallback":
        return leave_tensor_parallel(ctx, _fallback(mixer.kind)(ctx, mixer, inside))
    return leave_tensor_parallel(ctx, MIXERS[mixer.kind](ctx, mixer, inside))


def _fallback(kind: str) -> Callable[[Context, Mixer, Value], Value]:
    """The forward pass without the packages that have fused kernels; lightning attention never has any."""
    if kind == "lightning":
        return MIXERS[kind]
    if kind in ("short-convolution", "plain-short-convolution"):
        return _short_convolution_fallback
    if kind == "gated-delta-net":
        from memcheck.frameworks.transformers.delta_rule import delta_net_fallback

        return delta_net_fallback
    if kind == "kimi-delta":
        from memcheck.frameworks.transformers.kimi_delta import kimi_delta_fallback

        return kimi_delta_fallback
    if kind == "mamba2":
        from memcheck.frameworks.transformers.mamba2 import mamba2_fallback

        return mamba2_fallback
    if kind == "mamba1":
        from memcheck.frameworks.transformers.mamba1 import mamba1_fallback

        return mamba1_fallback
    raise UnsupportedError(
        f"memcheck has no model of {kind} layers without their fused kernels",
        "write `kernels: {ssm: fused}`, and install the packages",
        "/training/kernels/ssm",
    )


def _tensor(mixer: Mixer, leaf: str) -> ParameterTensor:
    return next(t for t in mixer.tensors if t.name.removesuffix(".weight").endswith(leaf))


def _project(ctx: Context, mixer: Mixer, x: Value, leaf: str) -> Value:
    tensor = _tensor(mixer, leaf)
    return linear(ctx.tape, x, ctx.weights(tensor, bias=False), tensor.name)


def _small_parameters(ctx: Context, mixer: Mixer, *groups: str) -> tuple[Value, ...]:
    """Convolution, decay and step parameters, or the gated norm's weight: leaves of the fused operation."""
    return tuple(
        ctx.tape.parameter(ctx.parameter(t.name, t.shape)) for t in mixer.tensors if not t.linear and t.group in groups
    )


def _lightning(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """MiniMaxLightningAttention: silu(qkv), blocks of 256 tokens, norm, sigmoid gate, projection."""
    tape = ctx.tape
    qkv = unary(tape, _project(ctx, mixer, x, "qkv_proj"), "silu")
    heads, d = -(-mixer.heads // ctx.tp), mixer.head_dim
    mixed = _blocks(ctx, qkv, heads, d)
    weight, _ = ctx.norm_weight(Norm("rmsnorm", heads * d), "self_attn.norm")
    mixed = rms_norm_pieces(tape, mixed, weight)
    gate = unary(tape, _project(ctx, mixer, x, "output_gate"), "sigmoid")
    return _project(ctx, mixer, mul(tape, gate, mixed), "out_proj")


def _blocks(ctx: Context, qkv: Value, heads: int, d: int) -> Value:
    """All blocks as one operation.

    Kept: q, k and v (one tensor), each block's decayed scores, its decayed keys but the last block's, its decayed
    queries but the first block's, and the running key-value products. Of several sequences torch.matmul keeps copies of
    q, k and v instead, and of the values but the last block's a second one, for their product with the decayed keys.
    """
    tape = ctx.tape
    tokens, dtype, width = qkv.shape[0], qkv.dtype, heads * d
    block = min(LIGHTNING_BLOCK, ctx.sequence)
    blocks = -(-ctx.sequence // block)
    states = tape.new((ctx.batch * blocks, heads, d, d), dtype, "key-value products")
    scores = tape.new((tokens, heads, block), dtype, "decayed scores")
    part = tokens * (blocks - 1) // blocks
    copied = 3 if ctx.setting.batch > 1 else 2
    decayed = tape.new((copied * part, width), dtype, "decayed queries and keys")
    pieces = tape.new((tokens, width), dtype, "outputs of blocks")
    out = tape.value((tokens, width), dtype, "cat blocks")
    del pieces
    shape = qkv.shape

    def run(grad: Storage) -> list[Storage | None]:
        through_scores = tape.new((tokens // blocks, heads, block), dtype, "scores backward")
        padded = [tape.new((tokens, width), dtype, "slice backward") for _ in range(3)]
        del through_scores
        total = tape.new(shape, dtype, "split backward")
        padded.clear()
        return [total]

    return tape.record(out, (qkv,), run, saves=(qkv.storage, states, scores, decayed))


def _mamba(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Mamba2 in training: in_proj, then convolution, scan, gated norm and out_proj in one autograd function.

    It keeps in_proj's output, the scan's output and the norm's rstd; the convolution is computed again in backward.
    """
    projected = _project(ctx, mixer, x, "in_proj")
    if isinstance(mixer, FalconH1Mixer):
        from memcheck.frameworks.transformers.mamba2 import multiplied

        projected = multiplied(ctx, projected)
    inner = -(-mixer.heads // ctx.tp) * mixer.head_dim
    kept = {"scan output": (inner, projected.dtype), "rstd": (1, "fp32")}
    scanned = _fused(ctx, mixer, projected, inner, kept, "norm")
    return _project(ctx, mixer, scanned, "out_proj")


def _delta_net(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Gated delta net: projections, convolution over q, k, v, chunked delta rule, gated norm, projection.

    Kept: both projections' outputs, the convolution's input and output, normalised q and k, v's gate, the chunks'
    triangular inverses, the rule's output.
    """
    tape = ctx.tape
    heads = -(-mixer.heads // ctx.tp)
    values = heads * mixer.head_dim
    names = {t.name.removesuffix(".weight").rpartition(".")[2] for t in mixer.tensors}
    gates: tuple[Value, ...]
    if "in_proj_qkvz" in names:
        projected = _project(ctx, mixer, x, "in_proj_qkvz")
        dtype, mixed = projected.dtype, projected.shape[-1] - values
        gates = (_project(ctx, mixer, x, "in_proj_ba"),)
        joined, gating = _fused(ctx, mixer, projected, mixed, {"mixed qkv": (mixed, dtype)}), projected
    else:  # Qwen 3.5, OLMo: the convolution reads what its own projections make
        from memcheck.frameworks.transformers.delta_rule import delta_inputs

        projected, gating, *rest = delta_inputs(ctx, mixer, x)
        dtype, mixed = projected.dtype, projected.shape[-1]
        joined, gates = _fused(ctx, mixer, projected, mixed, {}), tuple(rest)
    kept = {
        "convolution": (mixed, dtype),
        "normalised q, k": (mixed - values, dtype),
        "decay": (heads, "fp32"),
        "beta": (heads, dtype),
        "inverses of chunks": (heads * DELTA_CHUNK, dtype),
        "rule output": (values, dtype),
        "rstd": (heads, "fp32"),
    }
    tensors = tuple(tape.new((x.shape[0], width), kind, name) for name, (width, kind) in kept.items())
    out = tape.value((x.shape[0], values), dtype, "gated norm")
    norms = _small_parameters(ctx, mixer, "norm")
    inputs = (joined, *gates, gating)
    saves = (*tensors, *(v.storage for v in inputs[1:]))
    found = [(value.shape, dtype, "delta rule backward") for value in inputs]
    out = operator(tape, out, (*inputs, *norms), [*found, *["norm backward"] * len(norms)], saves=saves)
    del tensors, inputs, joined, gates, gating, projected
    return _project(ctx, mixer, out, mixer.output)


def _fused(ctx: Context, mixer: Mixer, x: Value, width: int, extra: dict[str, tuple[int, str]], *also: str) -> Value:
    """A fused function of ``x`` and the mixer's small parameters; keeps x and ``extra`` ([tokens, width] each).

    ``also``: further groups of parameters that it reads.
    """
    tape = ctx.tape
    rows = x.shape[0]
    parameters = _small_parameters(ctx, mixer, "mixer", *also) if width else ()
    kept = (x.storage, *(tape.new((rows, size), dtype, name) for name, (size, dtype) in extra.items()))
    out = tape.value((rows, width), x.dtype, mixer.kind)
    shape, dtype = x.shape, x.dtype
    small = [(p.shape, p.dtype) if p.origin is not None else None for p in parameters]

    def run(grad: Storage) -> list[Storage | None]:
        again = tape.new((rows, width), dtype, "recomputed convolution")
        result = tape.new(shape, dtype, mixer.kind + " backward")
        del again
        return [result, *(tape.new(s[0], s[1], "backward") if s else None for s in small)]

    return tape.record(out, (x, *parameters), run, saves=kept)


def _short_convolution(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """LFM 2 with causal-conv1d: B * x, one convolution that keeps its input alone, C times its output."""
    return _gated_convolution(ctx, mixer, x, fused=True)


def _short_convolution_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """LFM 2 without it: the padded output of PyTorch's convolution is there, too."""
    return _gated_convolution(ctx, mixer, x, fused=False)


def _gated_convolution(ctx: Context, mixer: Mixer, x: Value, *, fused: bool) -> Value:
    """Lfm2ShortConv: three parts of one projection; the first and the last are multiplied, convolved and gated."""
    from memcheck.frameworks.transformers.scan import convolve

    tape = ctx.tape
    names = {t.name.rpartition("conv.")[2]: t for t in mixer.tensors}
    bias = "bias" in names
    joint = linear(tape, x, ctx.weights(names["in_proj.weight"], "in_proj.bias" in names), "in_proj")
    third = (ctx.tokens, joint.shape[-1] // 3)
    before, after, inner = tape.views(joint, third, third, third)
    mixed = mul(tape, before, inner)
    mixed = convolve(ctx, names["weight"], names["bias"] if bias else None, mixed, "", fused=fused)
    gated = copy(tape, mul(tape, after, mixed), "contiguous")
    del mixed
    result = linear(tape, gated, ctx.weights(names["out_proj.weight"], "out_proj.bias" in names), "out_proj")
    del joint, before, after, inner, gated
    return result


def _mamba1(ctx: Context, mixer: Mixer, x: Value) -> Value:
    from memcheck.frameworks.transformers.mamba1 import mamba1_fused

    return mamba1_fused(ctx, mixer, x)


def _kimi_delta(ctx: Context, mixer: Mixer, x: Value) -> Value:
    from memcheck.frameworks.transformers.kimi_delta import kimi_delta

    return kimi_delta(ctx, mixer, x)


MIXERS: dict[str, Callable[[Context, Mixer, Value], Value]] = {
    "lightning": _lightning,
    "mamba1": _mamba1,
    "mamba2": _mamba,
    "gated-delta-net": _delta_net,
    "kimi-delta": _kimi_delta,
    "plain-short-convolution": _short_convolution_fallback,
    "short-convolution": _short_convolution,
}
"""The forward pass of every ``Mixer.kind``."""
