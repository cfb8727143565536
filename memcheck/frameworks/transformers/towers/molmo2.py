"""Molmo 2: patches through a matrix, rows of two layers, of which attention pools four each (modeling_molmo2.py)."""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.eager import eager
from memcheck.autograd.elementwise import cast, copy, mul
from memcheck.autograd.indexing import index
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import plain, with_positions
from memcheck.models.vision import Perceiver, Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embedding``, a matrix, and ``positional_embedding``."""
    table, weight, _ = vision.stem
    weights = ctx.weights(weight, True)
    dtype = weights.weight.dtype
    pixels = ctx.tape.value((ctx.tokens, vision.channels), dtype, "pixel_values")
    x = linear(ctx.tape, pixels, weights, weight.name)
    del pixels
    return hooked(with_positions(ctx, x, table, looked_up=False), leaf=leaf)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``image_pooling_2d`` and ``image_projector``."""
    tape, reader = ctx.tape, vision.perceiver
    tokens = ctx.setting.image_tokens or x.shape[0] // vision.merge
    shape, dtype, count = x.shape, x.dtype, 1 + len(vision.gathered)
    joined = tape.value((shape[0], count * shape[1]), dtype, "cat layers")
    joined = operator(tape, joined, x, "narrow")
    if reader is None:
        return joined
    query, key, value, output, gate, up, down = (t for t in vision.projector if t.linear)
    del x
    places = tape.new((tokens * vision.merge,), "int64", "pooled patches")
    patches = index(tape, joined, places, (tokens * vision.merge, joined.shape[1]), "patches to pool")
    patches = _masked(ctx, patches)
    summed = _summed(ctx, patches, tokens)
    q = plain(ctx, summed, query, bias=True)
    del summed
    k, v = plain(ctx, patches, key, bias=True), plain(ctx, patches, value, bias=True)
    del patches
    pooled = plain(ctx, _attended(ctx, reader, q, k, v), output, bias=True)
    del q, k, v
    acted = activation(tape, plain(ctx, pooled, gate), reader.activation)
    raised = plain(ctx, pooled, up)
    del pooled
    made = plain(ctx, mul(tape, acted, raised), down)
    del acted, raised
    picked = index(tape, made, tape.new((tokens,), "int64", "tokens with patches"), made.shape, "pooled_features")
    del made
    del joined  # `image_features`, a variable of `get_image_features`
    out = copy(tape, picked, "cat image tokens")
    ctx.returned += [picked, out]
    return out


def _masked(ctx: Context, x: Value) -> Value:
    """``patches * valid``: keeps the mask, of one number each."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    mask = tape.new(shape[:1], dtype, "valid patches")
    return operator(tape, tape.value(shape, dtype, "masked patches"), x, "mul backward", saves=(mask,))


def _summed(ctx: Context, x: Value, tokens: int) -> Value:
    """``patches.sum(-2) / valid``: the gradient of the sum is expanded without memory, until others are added."""
    tape, dtype, whole = ctx.tape, x.dtype, x.shape
    narrow = (tokens, whole[1])
    total = tape.value(narrow, dtype, "sum of patches")
    out = tape.value(narrow, dtype, "mean of patches")
    del total
    return operator(tape, out, x, "expanded gradient")


def _attended(ctx: Context, p: Perceiver, q: Value, k: Value, v: Value) -> Value:
    """One query over its patches, under a mask of those that there are."""
    tape, shape = ctx.tape, q.shape
    tokens, each = shape[0], k.shape[0] // shape[0]
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    q = q.view(tokens, p.heads, 1, p.head_dim)
    k, v = (t.view(tokens, p.heads, each, p.head_dim) for t in (k, v))
    if ctx.setting.attention == "eager":
        return copy(tape, eager(tape, q, k, v, mask_dtype=ctx.setting.params), "contiguous").view(*shape)
    aligned = -(-each // MASK_ALIGNMENT) * MASK_ALIGNMENT
    flashes = ctx.setting.attention in ("flash", "flex")
    mask = None if flashes else tape.new((tokens, 1, 1, aligned), q.dtype, "attention mask")
    label = "flash attention" if flashes else "efficient attention"
    return kernels.flash(tape, q, k, v, p.head_dim, label=label, extra=mask).view(*shape)
