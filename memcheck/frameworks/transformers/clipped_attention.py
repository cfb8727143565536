"""Inkling 2's attention: clipped queries, keys and rows, normed values, a sink and a gate of every token; and the soft
bounds of its experts.

Source: transformers 5.23 models/inkling2/modeling_inkling2.py (Inkling2SlidingAttention, Inkling2FullAttention,
Inkling2L2Clip, Inkling2ScaledL2Clip, Inkling2DynamicShortConvolution, Inkling2SoftcappedSwiGLU,
eager_attention_forward).
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, cat, convert_weight, copy, dropout, mul, scale, shift, unary
from memcheck.autograd.indexing import repeat_kv
from memcheck.autograd.matrix import linear
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.relative import biased_scores, distance_biases, short_convolution
from memcheck.models.attention_types import Relative
from memcheck.models.types import Attention, ParameterTensor


def clipped_attention(ctx: Context, a: Attention, r: Relative, inputs: list[Value]) -> Value:
    """One attention module. ``inputs``: what queries, keys and values are made of. Its variables live to its end."""
    if ctx.tp > 1 or ctx.setting.context > 1:
        raise UnsupportedError(
            "memcheck has no model of Inkling 2's attention on several ranks",
            "leave tensor and context at 1: transformers cuts its experts alone",
            "/parallelism",
        )
    tape, rows = ctx.tape, ctx.tokens
    tensors = {t.name.removeprefix("self_attn.").removesuffix(".weight"): t for t in a.tensors}
    hidden, for_keys, for_values = inputs
    q = _project(ctx, tensors["q_proj"], hidden)
    k = _convolved(ctx, a, r, tensors, ("k", for_keys))
    v = _convolved(ctx, a, r, tensors, ("v", for_values))
    states, gate, sinks = (_project(ctx, tensors[n + "_proj"], hidden) for n in ("r", "gate", "sink"))
    b, s, d = ctx.batch, ctx.sequence, a.head_dim
    q = clip(ctx, q.view(rows, a.heads, d), tensors["q_l2_clip.scale"])
    q = _by_position(tape, q) if r.scaled else q
    k = clip(ctx, k.view(rows, a.kv_heads, d), None)
    v = _normed_values(tape, v.view(rows, a.kv_heads, d))
    states = clip(ctx, states.view(rows, a.heads, r.width), tensors["rel_l2_clip.scale"])
    states = _by_position(tape, states) if r.scaled else states
    q, k, v = (t.view(b, n, s, d) for t, n in ((q, a.heads), (k, a.kv_heads), (v, a.kv_heads)))
    biases = distance_biases(ctx, a, r, tensors["rel_logits_proj.proj"], states)
    out = _eager(ctx, a, (q, k, v), biases, sinks)
    opened = unary(tape, cast(tape, gate, "fp32"), "sigmoid")
    narrow = out.dtype
    out = cast(tape, mul(tape, cast(tape, out.view(*opened.shape), "fp32"), opened), narrow)
    del opened
    result = _project(ctx, tensors["o_proj"], out)
    del q, k, v, states, gate, sinks, biases, out
    return result


def clip(ctx: Context, x: Value, factor: ParameterTensor | None) -> Value:
    """Rows of fp32 copies, times a learned vector of each head, times what makes their norms no longer than a bound."""
    tape, narrow = ctx.tape, x.dtype
    wide = cast(tape, x, "fp32")
    if factor is not None:
        weight = tape.parameter(ctx.parameter(factor.name, factor.shape))
        wide = mul(tape, wide, convert_weight(tape, weight, "fp32"), "clip scale")
    norm = _vector_norm(tape, wide)
    inverse = unary(tape, shift(tape, norm, "norm + eps"), "reciprocal")
    ratio = _clamped(tape, scale(tape, inverse, "threshold"))
    out = cast(tape, mul(tape, wide, ratio), narrow)
    del wide, norm, inverse, ratio
    return out


def _vector_norm(tape: Tape, x: Value) -> Value:
    """``torch.linalg.vector_norm``: keeps its input and its result; backward makes a tensor of the input's size."""
    out = tape.value((*x.shape[:-1], 1), x.dtype, "vector norm")
    return operator(tape, out, x, "vector norm backward", saves=(x, out))


def _clamped(tape: Tape, x: Value) -> Value:
    from memcheck.autograd.elementwise import clamp

    return clamp(tape, x, 1)


def _by_position(tape: Tape, x: Value) -> Value:
    """``(x.float() * tau).to(x.dtype)``."""
    return cast(tape, scale(tape, cast(tape, x, "fp32"), "tau"), x.dtype)


def _normed_values(tape: Tape, x: Value) -> Value:
    from memcheck.frameworks.transformers.attention_residual import unweighted

    return cast(tape, unweighted(tape, cast(tape, x, "fp32")), x.dtype)


def _project(ctx: Context, tensor: ParameterTensor, x: Value) -> Value:
    return linear(ctx.tape, x, ctx.replicated(tensor), tensor.name)


def _convolved(
    ctx: Context, a: Attention, r: Relative, tensors: dict[str, ParameterTensor], which: tuple[str, Value]
) -> Value:
    name, x = which
    projected = _project(ctx, tensors[name + "_proj"], x)
    if not r.dynamic:
        return short_convolution(ctx, tensors[name + "_sconv.conv1d"], projected, scaled=True)
    static, matrix = tensors[name + "_sconv.static_weight"], tensors[name + "_sconv.weight_proj"]
    return _dynamic_convolution(ctx, (a.kv_heads, r.kernel), (static, matrix), projected, x)


def _dynamic_convolution(
    ctx: Context, size: tuple[int, int], tensors: tuple[ParameterTensor, ParameterTensor], x: Value, by: Value
) -> Value:
    """Inkling2DynamicShortConvolution.forward: windows of every token, times weights of every token, in fp32."""
    tape, rows, (heads, kernel), channels = ctx.tape, ctx.tokens, size, x.shape[-1]
    made = cast(tape, _project(ctx, tensors[1], by), "fp32")
    weight = tape.parameter(ctx.parameter(tensors[0].name, tensors[0].shape))
    weight = convert_weight(tape, weight, "fp32")
    every = (rows, channels, kernel)
    weights = _broadcast(tape, made.view(rows, heads, 1, kernel), weight, every)
    wide = cast(tape, x, "fp32")
    windows, context = _windows(ctx, wide, every)
    total = _summed(tape, mul(tape, windows, weights, "windows * weights"), (rows, channels))
    both = add(tape, total, wide, "convolution + input")
    out = cast(tape, scale(tape, both, "scaled convolution"), x.dtype)
    del made, weight, weights, wide, windows, context, total, both
    return out


def _broadcast(tape: Tape, made: Value, weight: Value, shape: tuple[int, ...]) -> Value:
    """``static + dynamic``: broadcast over a head's channels, and over tokens; gradients are sums."""
    out = tape.value(shape, "fp32", "convolution weights")
    found = [v.shape if v.origin is not None else None for v in (made, weight)]

    def run(grad: Storage) -> list[Storage | None]:
        return [tape.new(f, "fp32", "sum") if f else None for f in found]

    return tape.record(out, (made, weight), run)


def _windows(ctx: Context, x: Value, shape: tuple[int, ...]) -> tuple[Value, Value]:
    """``F.pad`` and a slice, ``unfold(...).flip(-1)``, and the padded tensor, which keeps a name."""
    tape, kernel = ctx.tape, shape[-1]
    long = (ctx.batch, ctx.sequence + kernel - 1, x.shape[-1])
    context = tape.value(long, "fp32", "padded context")
    out = tape.value(shape, "fp32", "windows")
    small = x.shape

    def run(grad: Storage) -> list[Storage | None]:
        turned = tape.new(shape, "fp32", "flip backward")
        folded = tape.new(long, "fp32", "unfold backward")
        del turned
        sliced = tape.new(long, "fp32", "slice backward")
        del folded
        found = tape.new(small, "fp32", "pad backward")
        del sliced
        return [found]

    return tape.record(out, (x,), run), context


def _summed(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``.sum(-1)``: its gradient is an expanded view."""
    return operator(tape, tape.value(shape, x.dtype, "sum over the kernel"), x, PASSED)


def _eager(ctx: Context, a: Attention, heads: tuple[Value, Value, Value], biases: Value, sinks: Value) -> Value:
    """eager_attention_forward: a logit of the token's own is added to its scores. The masked scores keep their variable
    until the probabilities are there, the fp32 logits to the end.
    """
    tape, whole = ctx.tape, ctx.setting.batch > 1 and a.heads == a.kv_heads
    q, k, v = heads
    k, v = (repeat_kv(tape, t, a.heads) if a.heads != a.kv_heads else t for t in (k, v))
    weights = biased_scores(ctx, a, q, k, biases)
    shape = weights.shape
    wide = (*shape[:3], shape[3] + 1)
    logits = cast(tape, cat(tape, (weights, sinks.view(*shape[:3], 1)), wide, "cat sinks"), "fp32")
    chances = kernels.softmax(tape, logits)
    cut = operator(tape, Value(chances.storage, shape, "fp32"), chances, (wide, "fp32", "slice backward"))
    del chances
    weights = cast(tape, cut, q.dtype, "attention probabilities")
    del cut
    weights = dropout(tape, weights, a.dropout)
    ctx.unused.append(weights)
    out = kernels.batched(tape, weights, v, (*q.shape[:3], v.shape[-1]), "attention output", (False, whole))
    out = copy(tape, out, "contiguous")
    del logits, k, v
    return out


def softly_clamped(tape: Tape, gate: Value, up: Value) -> Value:
    """Inkling2SoftcappedSwiGLU.forward: ``cap(gate) * sigmoid(gate) * cap(up)`` of fp32 copies, cast back."""
    narrow = gate.dtype
    gate, up = cast(tape, gate, "fp32"), cast(tape, up, "fp32")
    first = scale(tape, unary(tape, scale(tape, gate, "softcap"), "tanh"), "softcap")
    first = mul(tape, first, unary(tape, gate, "sigmoid"))
    second = scale(tape, unary(tape, scale(tape, up, "softcap"), "tanh"), "softcap")
    return cast(tape, mul(tape, first, second), narrow)
