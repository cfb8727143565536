"""MiniCPM-V 4.6 and 4.7: SigLIP's layers, and a merger of windows between them (modeling_minicpmv4_6.py).

Pictures go through the projector one after the other upstream, and all at once here: what is kept is the same.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, copy, unary
from memcheck.autograd.indexing import index, slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import activation
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.attention import tower_attention
from memcheck.frameworks.transformers.towers.qwen import features, hooked
from memcheck.frameworks.transformers.towers.tiles import convolve, last_rows, layer_norm
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import TowerAttention, Vision

WINDOW = 4
"""Patches that become one between the layers, and again in the projector."""


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``: each patch looks up the nearest place. The hook is on ``patch_embedding``."""
    weight, bias, table = vision.stem
    x, held = hooked(convolve(ctx, vision, ctx.tokens, weight, bias, outside=True), leaf=leaf)
    return add(ctx.tape, x, _positions(ctx, table), "add positions"), held


def _positions(ctx: Context, table: ParameterTensor) -> Value:
    """``position_embedding(pos_ids)``: keeps the places, int64."""
    tape, rows = ctx.tape, ctx.tokens
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    out = tape.value((rows, table.shape[1]), p.dtype, "positions")
    places = tape.new((rows,), "int64", "places")
    shape, dtype = table.shape, p.dtype
    return operator(tape, out, tape.parameter(p), (shape, dtype, "embedding backward"), saves=(places,))


def between(ctx: Context, vision: Vision, x: Value) -> Value:
    """``vit_merger``: attention in windows of four patches, their mean, and what two matrices make of all four."""
    tape, shape = ctx.tape, x.shape
    own = vision.between
    matrices = [t for t in own if t.linear]
    order = tape.new((shape[0],), "int64", "places of windows")
    h = layer_norm(ctx, x, _norm(own, "layer_norm1"))
    h = index(tape, h, order, shape)
    mixer = vision.blocks[0][0].mixer
    if isinstance(mixer, TowerAttention):
        tensors = tuple(t for t in own if ".self_attn." in t.name)
        h = tower_attention(ctx, mixer._replace(tensors=tensors, window=WINDOW), h)
    merged = add(tape, index(tape, x, order, shape), h, "residual")
    del h
    mean = _mean(ctx, merged)
    flat = layer_norm(ctx, merged.view(shape[0] // WINDOW, shape[1] * WINDOW), _norm(own, "pre_norm"))
    inner = linear(tape, flat, ctx.weights(matrices[-2], True), matrices[-2].name)
    del flat
    acted = unary(tape, inner, "gelu_pytorch_tanh")
    del inner
    out = linear(tape, acted, ctx.weights(matrices[-1], True), matrices[-1].name)
    del acted
    return add(tape, out, mean, "mean of a window")


def _norm(tensors: tuple[ParameterTensor, ...], name: str) -> tuple[ParameterTensor, ...]:
    return tuple(t for t in tensors if f".{name}." in t.name)


def _mean(ctx: Context, x: Value) -> Value:
    """``patch.mean(dim=1)``: keeps nothing; backward divides an expanded gradient."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    return operator(tape, tape.value((shape[0] // WINDOW, shape[1]), dtype, "mean of windows"), x, "mean backward")


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, and ``merger`` of every picture: a slice of the rows, four patches side by side by a copy."""
    tape = ctx.tape
    x = last_rows(ctx, vision, x)
    x = slices(tape, x, x.shape)[0]
    x = copy(tape, x, "merge patches").view(x.shape[0] // WINDOW, x.shape[1] * WINDOW)
    x = layer_norm(ctx, x, vision.projector[:2])
    first, second = (t for t in vision.projector if t.linear)
    inner = linear(tape, x, ctx.weights(first, True), first.name)
    del x
    acted = activation(tape, inner, "gelu")
    del inner
    return features(ctx, linear(tape, acted, ctx.weights(second, True), second.name))
