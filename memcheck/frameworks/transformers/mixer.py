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

from memcheck.autograd.context import Context, enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.elementwise import mul, unary
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Storage, Value
from memcheck.errors import UnsupportedError
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
    return leave_tensor_parallel(ctx, MIXERS[mixer.kind](ctx, mixer, inside))


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

    def run(grad: Storage, kept: object = (qkv.storage, states, scores, decayed)) -> list[Storage | None]:
        through_scores = tape.new((tokens // blocks, heads, block), dtype, "scores backward")
        padded = [tape.new((tokens, width), dtype, "slice backward") for _ in range(3)]
        del through_scores
        total = tape.new(shape, dtype, "split backward")
        padded.clear()
        return [total]

    return tape.record(out, (qkv,), run)


def _mamba(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Mamba2 in training: in_proj, then convolution, scan, gated norm and out_proj in one autograd function.

    It keeps in_proj's output, the scan's output and the norm's rstd; the convolution is computed again in backward.
    """
    projected = _project(ctx, mixer, x, "in_proj")
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
    projected = _project(ctx, mixer, x, "in_proj_qkvz")
    gates = _project(ctx, mixer, x, "in_proj_ba")
    heads = -(-mixer.heads // ctx.tp)
    values = heads * mixer.head_dim
    mixed = projected.shape[-1] - values
    dtype = projected.dtype
    joined = _fused(ctx, mixer, projected, mixed, {"mixed qkv": (mixed, dtype)})
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
    shapes = ((joined.shape, dtype), (gates.shape, dtype), (projected.shape, dtype))
    small = [(p.shape, p.dtype) if p.origin is not None else None for p in norms]

    def run(grad: Storage, kept: object = (tensors, projected.storage, gates.storage)) -> list[Storage | None]:
        found = [tape.new(shape, kind, "delta rule backward") for shape, kind in shapes]
        return [*found, *(tape.new(s[0], s[1], "norm backward") if s else None for s in small)]

    out = tape.record(out, (joined, gates, projected, *norms), run)
    del tensors
    return _project(ctx, mixer, out, "out_proj")


def _fused(ctx: Context, mixer: Mixer, x: Value, width: int, extra: dict[str, tuple[int, str]], *also: str) -> Value:
    """A fused function of ``x`` and the mixer's small parameters; keeps x and ``extra`` ([tokens, width] each).

    ``also``: further groups of parameters that it reads.
    """
    tape = ctx.tape
    rows = x.shape[0]
    parameters = _small_parameters(ctx, mixer, "mixer", *also) if width else ()
    kept = (x.storage, tuple(tape.new((rows, size), dtype, name) for name, (size, dtype) in extra.items()))
    out = tape.value((rows, width), x.dtype, mixer.kind)
    shape, dtype = x.shape, x.dtype
    small = [(p.shape, p.dtype) if p.origin is not None else None for p in parameters]

    def run(grad: Storage, kept: object = kept) -> list[Storage | None]:
        again = tape.new((rows, width), dtype, "recomputed convolution")
        result = tape.new(shape, dtype, mixer.kind + " backward")
        del again
        return [result, *(tape.new(s[0], s[1], "backward") if s else None for s in small)]

    return tape.record(out, (x, *parameters), run)


MIXERS: dict[str, Callable[[Context, Mixer, Value], Value]] = {
    "lightning": _lightning,
    "mamba2": _mamba,
    "gated-delta-net": _delta_net,
}
"""The forward pass of every ``Mixer.kind``."""
