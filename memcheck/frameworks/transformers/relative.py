"""Inkling's attention: short convolutions after keys and values, and biases of distances that each token weighs.

Source: transformers 5.23 models/inkling/modeling_inkling.py (InklingAttention, InklingRelativeLogits,
InklingShortConvolution, eager_attention_forward), integrations/sdpa_attention.py (create_position_bias_mask).
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, copy, dropout, scale, shift
from memcheck.autograd.indexing import gather_last, repeat_kv
from memcheck.autograd.matrix import linear
from memcheck.autograd.operator import factors, operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.attention import as_heads
from memcheck.frameworks.transformers.position_bias import kernel_with_biases, padded
from memcheck.frameworks.transformers.scan import convolve
from memcheck.models.attention_types import Relative
from memcheck.models.types import Attention, ParameterTensor

Heads = tuple[Value, Value, Value]


def relative_attention(ctx: Context, a: Attention, x: Value) -> Value:
    """One attention module. Whatever has a name in its forward lives until it returns."""
    if ctx.tp > 1 or ctx.setting.context > 1:
        raise UnsupportedError(
            "memcheck has no model of Inkling's attention on several ranks",
            "leave tensor and context at 1: transformers cuts its experts alone",
            "/parallelism",
        )
    tape, kernel, r = ctx.tape, _kernel_of(ctx, a), a.relative
    if r is None:
        return x
    tensors = {t.name.removeprefix("self_attn.").removesuffix(".weight"): t for t in a.tensors}
    q = _project(ctx, tensors["q_proj"], x)
    k = short_convolution(ctx, tensors["k_sconv.conv1d"], _project(ctx, tensors["k_proj"], x))
    v = short_convolution(ctx, tensors["v_sconv.conv1d"], _project(ctx, tensors["v_proj"], x))
    states = _project(ctx, tensors["r_proj"], x)
    copies = kernel != "efficient"
    q = as_heads(ctx, a, q, a.heads, a.query_norm, True)
    k = as_heads(ctx, a, k, a.kv_heads, a.key_norm, True)
    v = as_heads(ctx, a, v, a.kv_heads, None, copies or a.heads != a.kv_heads)
    biases = distance_biases(ctx, a, r, tensors["rel_logits_proj.proj"], states)
    if r.scaled:
        q, biases = (cast(tape, scale(tape, cast(tape, t, "fp32"), "tau"), t.dtype) for t in (q, biases))
    heads = (q, k, v)
    out = _eager(ctx, a, heads, biases) if kernel == "eager" else _fused(ctx, a, heads, biases, kernel)
    del heads
    result = _project(ctx, tensors["o_proj"], out.view(ctx.tokens, a.heads * a.head_dim))
    del q, k, v, states, biases, out
    return result


def short_convolution(ctx: Context, tensor: ParameterTensor, x: Value, *, scaled: bool = False) -> Value:
    """fp32 copies through a convolution whose weights are fp32 in a model that was loaded, added to what went in.

    Autocast casts what PyTorch's convolution is given, and nothing of causal-conv1d's own function, which keeps fp32.
    ``scaled``: the sum is divided by a constant (Inkling 2).
    """
    tape, fused = ctx.tape, ctx.setting.ssm != "fallback"
    wide = cast(tape, x, "fp32")
    autocast, tape.autocast = tape.autocast, None if fused else tape.autocast
    made = convolve(ctx, tensor, None, wide, "", fused=fused)
    tape.autocast = autocast
    both = add(tape, made, wide, "convolution + input")
    both = scale(tape, both, "scaled convolution") if scaled else both
    out = cast(tape, both, x.dtype)
    del wide, made
    return out


def _kernel_of(ctx: Context, a: Attention) -> str:
    """Biases are a mask: with fewer key heads than query heads and no window, ``enable_gqa`` leaves the math kernel."""
    if ctx.setting.attention == "eager":
        return "eager"
    masked = a.padded or (a.window is not None and ctx.setting.sequence >= a.window)
    return "efficient" if masked or a.heads == a.kv_heads else "math"


def _project(ctx: Context, tensor: ParameterTensor, x: Value) -> Value:
    return linear(ctx.tape, x, ctx.replicated(tensor), tensor.name)


def distance_biases(ctx: Context, a: Attention, r: Relative, tensor: ParameterTensor, states: Value) -> Value:
    """Both Inklings' RelativeLogits.forward: [batch, heads, queries, keys] of [batch, heads, queries, extent]."""
    tape, b, s = ctx.tape, ctx.batch, ctx.sequence
    profiles = (b, a.heads, s, r.extent)
    logits = _profiles(ctx, tensor, states.view(ctx.tokens * a.heads, r.width), profiles)
    distance = tape.new((s, s), "int64", "distances")
    index = tape.new((s, s), "int64", "clamped distances")
    shape = (b, a.heads, s, s)
    picked = gather_last(tape, logits, index, shape, "position biases")
    masks = [tape.new((s, s), "bool", "distances out of reach") for _ in range(3)]
    out = tape.value(shape, logits.dtype, "masked position biases")
    out = operator(tape, out, picked, "masked_fill backward", saves=masks[-1:])
    del logits, distance, index, picked, masks
    return out


def _profiles(ctx: Context, tensor: ParameterTensor, states: Value, shape: tuple[int, ...]) -> Value:
    """``(states @ proj).transpose(1, 2)``: keeps both; the gradient is laid out row by row first."""
    tape = ctx.tape
    matrix = tape.parameter(ctx.parameter(tensor.name, tensor.shape))
    if tape.autocast:
        matrix, states = cast(tape, matrix, tape.autocast), cast(tape, states, tape.autocast)
    out = tape.value(shape, states.dtype, "relative logits")
    size, dtype = matrix.shape, states.dtype
    return operator(
        tape,
        out,
        (states, matrix),
        [tensor.name + " dX", (size, dtype, tensor.name + " dW")],
        saves=factors(states, matrix),
        temporaries=[(shape, dtype, "contiguous gradient")],
        reverse=True,
    )


def _eager(ctx: Context, a: Attention, heads: Heads, biases: Value) -> Value:
    """eager_attention_forward: one variable holds the scores, then each result."""
    tape, whole = ctx.tape, ctx.setting.batch > 1 and a.heads == a.kv_heads
    q, k, v = heads
    k, v = (repeat_kv(tape, t, a.heads) if a.heads != a.kv_heads else t for t in (k, v))
    weights = biased_scores(ctx, a, q, k, biases)
    weights = kernels.softmax(tape, weights, "fp32")
    weights = cast(tape, weights, q.dtype, "attention probabilities")
    weights = dropout(tape, weights, a.dropout)
    ctx.unused.append(weights)
    out = kernels.batched(tape, weights, v, (*q.shape[:3], v.shape[-1]), "attention output", (False, whole))
    return copy(tape, out, "contiguous")


def biased_scores(ctx: Context, a: Attention, q: Value, k: Value, biases: Value) -> Value:
    """Scaled scores of all heads with their biases and the mask: ``[batch, heads, queries, keys]``.

    ``k`` is repeated where several query heads share it, which makes it a copy.
    """
    tape, s = ctx.tape, ctx.setting
    several = s.batch > 1
    shape = (q.shape[0], a.heads, q.shape[2], k.shape[2])
    scores = kernels.batched(tape, q, k, shape, "attention scores", (several, several and a.heads == a.kv_heads))
    scores = scale(tape, scores, "attention scaling")
    scores = add(tape, scores, biases, "add biases")
    return shift(tape, scores, "attention mask", s.params if tape.autocast else s.compute)


def _fused(ctx: Context, a: Attention, heads: Heads, biases: Value, kernel: str) -> Value:
    """sdpa_attention_forward: biases where a token may look, which are the kernel's mask."""
    tape = ctx.tape
    q, k, v = heads
    if kernel == "efficient" and a.heads != a.kv_heads:
        k, v = (repeat_kv(tape, t, a.heads) for t in (k, v))
    arguments = k, v  # variables of sdpa_attention_forward while the kernel runs
    shape, dtype = biases.shape, biases.dtype
    made = None if kernel == "efficient" else tape.new(shape[2:], "bool", "causal mask")
    mask = tape.value(shape, dtype, "masked biases")
    named = mask = operator(tape, mask, biases, "where backward", saves=(made,))
    if tape.autocast:
        q, k, v, mask = (cast(tape, t, tape.autocast) for t in (q, k, v, mask))
    if kernel == "math":
        out = _math(ctx, q, k, v, mask)
    else:
        if shape[3] % MASK_ALIGNMENT:
            wide = -(-shape[3] // MASK_ALIGNMENT) * MASK_ALIGNMENT
            mask = padded(tape, mask, (*shape[:3], wide))
        out = kernel_with_biases(tape, q, k, v, mask)
    del arguments, named, made
    return out


def _math(ctx: Context, q: Value, k: Value, v: Value, mask: Value) -> Value:
    """aten _scaled_dot_product_attention_math: half precision is computed in fp32, repeated heads are copies."""
    tape: Tape = ctx.tape
    outside, tape.autocast = tape.autocast, None
    half = q.dtype if q.dtype in ("bf16", "fp16") else ""
    wide_q, wide_k, wide_v = (cast(tape, t, "fp32") for t in (q, k, v)) if half else (q, k, v)
    b, h, s, d = q.shape
    scaled = scale(tape, wide_q)
    keys, values = (repeat_kv(tape, t, h, copies=True) if t.shape[1] != h else t for t in (wide_k, wide_v))
    turned = scale(tape, keys)
    several = ctx.setting.batch > 1
    weights = kernels.batched(tape, scaled, turned, (b, h, s, s), "attention scores", (several, False))
    del turned
    weights = _add_in_place(tape, weights, mask)
    weights = kernels.softmax(tape, weights)
    narrow = tape.value(weights.shape, half, "unused weights") if half else None
    out = kernels.batched(tape, weights, values, (b, h, s, d), "attention output")
    out = cast(tape, out, half) if half else out
    del weights, narrow, scaled, keys, values, wide_q, wide_k, wide_v
    tape.autocast = outside
    return copy(tape, out, "contiguous")


def _add_in_place(tape: Tape, scores: Value, mask: Value) -> Value:
    """``attn.add_(mask)``: the mask's gradient is the scores', in its own dtype."""
    out = Value(scores.storage, scores.shape, scores.dtype)
    shape, dtype, wants = mask.shape, mask.dtype, mask.origin is not None
    same = dtype == scores.dtype

    def run(grad: Storage) -> list[Storage | None]:
        own = grad if same else tape.new(shape, dtype, "to backward")
        return [grad, own if wants else None]

    return tape.record(out, (scores, mask), run)
