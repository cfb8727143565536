"""Aria: learned rows read each picture's by torch.nn.MultiheadAttention, weights and all (modeling_aria.py)."""

from __future__ import annotations

from memcheck.autograd.attention import batched, softmax
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy, scale
from memcheck.autograd.matrix import product
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.idefics2 import with_positions_of_rows
from memcheck.frameworks.transformers.towers.idefics3 import masked
from memcheck.frameworks.transformers.towers.tiles import convolve, given_out, layer_norm, plain
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, the module that the hook is on. Positions are looked up for every row of every picture."""
    weight, bias, table = vision.stem
    x = convolve(ctx, vision, ctx.tokens, weight, bias)
    return masked(ctx, with_positions_of_rows(ctx, x, table), leaf=leaf)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector`` on the last layer's rows. The tower's last norm has made others, in its output."""
    reader = vision.perceiver
    if reader is None:
        return x
    _beside(ctx, vision, x)
    query, *cross, weight, bias, first, second = vision.projector
    tokens = ctx.setting.image_tokens or max(1, ctx.setting.pictures) * vision.resampled
    out = _crossed(ctx, reader, tuple(cross), _queries(ctx, query, tokens), x)
    inner = plain(ctx, layer_norm(ctx, out, (weight, bias)), first)
    del out
    acted = activation(ctx.tape, inner, reader.activation)
    del inner
    return given_out(ctx, plain(ctx, acted, second), joins=False)


def _beside(ctx: Context, vision: Vision, x: Value) -> None:
    """``post_layernorm``, whose rows nothing reads."""
    dtype = "fp32" if ctx.tape.autocast else x.dtype
    ctx.returned.append(ctx.tape.value(x.shape, dtype, "post_layernorm"))


def _queries(ctx: Context, query: ParameterTensor, tokens: int) -> Value:
    """The learned queries, ``[tokens, width]``: one row per image token of a picture, repeated for every picture."""
    tape, p = ctx.tape, ctx.parameter(query.name, query.shape)
    out = tape.value((tokens, query.shape[1]), p.dtype, "repeat queries")
    shape, dtype = query.shape, p.dtype
    return operator(tape, out, tape.parameter(p), (shape, dtype, "sum"))


def _crossed(ctx: Context, p: Perceiver, tensors: tuple[ParameterTensor, ...], y: Value, x: Value) -> Value:
    """AriaCrossAttention. MultiheadAttention has the pictures in second place, so that each product copies its rows;
    autocast casts the parts of its joined matrix anew. Scores are the product's sum with a mask, and their softmax is
    in their dtype.
    """
    tape, n = ctx.tape, max(1, ctx.setting.pictures)
    norms, (query, key, value) = tensors[:4], tensors[4:7]
    joined, offsets, output, output_bias, last, _ = tensors[7:]
    several = n > 1
    q = plain(ctx, layer_norm(ctx, y, norms[:2]), query)
    rows = layer_norm(ctx, x, norms[2:])
    k, v = plain(ctx, rows, key), plain(ctx, rows, value)
    arguments = [rows, q, k, v]  # variables of the module's forward
    del rows
    width, few, many = q.shape[1], q.shape[0] // n, k.shape[0] // n
    w, b = ctx.parameter(joined.name, joined.shape), ctx.parameter(offsets.name, offsets.shape)
    weights = tape.views(tape.parameter(w), *3 * [(width, width)])
    biases = tape.views(tape.parameter(b), *3 * [(width,)])
    made = [
        product(tape, copy(tape, each, "contiguous") if several else each, weight, "in_proj", bias)
        for each, weight, bias in zip((q, k, v), weights, biases, strict=True)
    ]
    q, k, v = (each.view(n, p.heads, each.shape[0] // n, p.head_dim) for each in made)
    made.clear()
    shape = (n, p.heads, few, many)
    mask = tape.new(shape, q.dtype, "attention mask")
    boolean = tape.new((n * p.heads, many), "bool", "repeated padding mask")
    q = scale(tape, q, "q_scaled")
    scores = batched(tape, q, k, shape, "attention scores")
    del q, k
    scores = softmax(tape, scores, "fp32" if tape.autocast else None)
    out = batched(tape, scores, v, (n, p.heads, few, p.head_dim), "attention output")
    del v
    out = copy(tape, out, "reshape").view(few * n, width)
    out = _matrix(ctx, out, output, output_bias)
    mean = tape.new((n, few, many), scores.dtype, "average weights")
    del scores, mask, boolean
    out = copy(tape, out, "contiguous") if several else out
    out = plain(ctx, out, last, bias=True)
    del mean, arguments
    return out


def _matrix(ctx: Context, x: Value, weight: ParameterTensor, bias: ParameterTensor) -> Value:
    """``out_proj``, whose weight torch.nn.MultiheadAttention reads past its adapter."""
    tape = ctx.tape
    w, b = (ctx.parameter(t.name.removesuffix(".weight"), t.shape) for t in (weight, bias))
    return product(tape, x, tape.parameter(w), weight.name, tape.parameter(b))
