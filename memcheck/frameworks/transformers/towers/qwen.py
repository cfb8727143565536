"""Qwen2-VL: patches as rows, a convolution that is a matrix product, a LayerNorm in the merger.

modeling_qwen2_vl.py of transformers 5.23.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, copy, unary
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import fused_norm
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Leaf, Value
from memcheck.frameworks.transformers.towers.tiles import narrow_pixels
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed`` and the rotary tables."""
    x, held = hooked(patch_embedding(ctx, vision), leaf=leaf)
    return x, held + rotary_tables(ctx, vision)


def hooked(x: Value, *, leaf: bool) -> tuple[Value, list[Value]]:
    """``output.requires_grad_(True)`` of a frozen patch embedding's rows; these come first of what is kept."""
    if not leaf:
        return x, []
    x.origin = Leaf()
    return x, [Value(x.storage, x.shape, x.dtype)]


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``merger``."""
    norm, bias = vision.projector[:2]
    weight, offset = ctx.parameter(norm.name, norm.shape), ctx.parameter(bias.name, bias.shape)
    x = fused_norm(ctx.tape, x, weight, offset, "layernorm")
    merged = merge(ctx, vision, x, vision.projector[2:])
    return features(ctx, merged)


def patch_embedding(ctx: Context, vision: Vision) -> Value:
    """A convolution whose stride is its kernel. ``pixel_values`` are cast to the tower's dtype, and kept if the weights
    are trained. Its output is a view of [rows, hidden].
    """
    tape = ctx.tape
    weight, *others = vision.stem
    w = ctx.parameter(weight.name.removesuffix(".weight"), weight.shape)
    bias = [ctx.parameter(t.name, t.shape) for t in others if t.name.endswith("proj.bias")]
    dtype = tape.autocast or w.dtype
    pixels = narrow_pixels(ctx, (ctx.tokens, vision.channels), dtype) if dtype != "fp32" else None
    shape = (ctx.tokens, vision.hidden)
    if pixels is not None and not tape.autocast:  # a variable of `get_image_features`
        ctx.returned.append(Value(pixels.storage, pixels.shape, pixels.dtype))
    wv = cast(tape, tape.parameter(w), tape.autocast) if tape.autocast else tape.parameter(w)
    out = tape.value(shape, dtype, "patch_embed")
    saves = (pixels if w.requires_grad else None,)
    of_bias = [(b.shape, dtype, "patch_embed db") for b in bias]
    return operator(tape, out, (wv, *map(tape.parameter, bias)), ["patch_embed dW", *of_bias], saves=saves)


def rotary_tables(ctx: Context, vision: Vision) -> list[Value]:
    """cos and sin of every row in fp32: [rows, head_dim]."""
    shape = (ctx.tokens, vision.hidden // vision.heads)
    return [ctx.tape.value(shape, "fp32", "rotary table") for _ in range(2)]


def merge(ctx: Context, vision: Vision, x: Value, tensors: tuple[ParameterTensor, ...]) -> Value:
    """``mlp(x.view(-1, merge * hidden))``: two matrices with an activation between them."""
    tape = ctx.tape
    first, _, second, _ = tensors
    x = x.view(ctx.tokens // vision.merge, vision.hidden * vision.merge)
    inner = linear(tape, x, ctx.weights(first, True), first.name)
    acted = unary(tape, inner, vision.activation)
    del inner
    return linear(tape, acted, ctx.weights(second, True), second.name)


def features(ctx: Context, merged: Value) -> Value:
    """``torch.cat`` of the pictures' image tokens, which are views of one tensor; both stay in variables."""
    out = copy(ctx.tape, merged, "cat image tokens")
    ctx.returned += [merged, out]
    return out
