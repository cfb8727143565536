"""ERNIE 4.5 VL: patches through a matrix, merged by fours, and each picture as a clip of two equal frames.

modeling_ernie4_5_vl_moe.py, Ernie4_5_VLMoeVariableResolutionResamplerModel.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cat, unary
from memcheck.autograd.indexing import index
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import features, hooked, rotary_tables
from memcheck.frameworks.transformers.towers.tiles import last_rows, layer_norm, narrow_pixels, plain
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed``, a matrix, and the rotary tables."""
    tape, weight = ctx.tape, vision.stem[0]
    weights = ctx.weights(weight, False)
    shape, dtype = (ctx.tokens, vision.channels), weights.weight.dtype
    pixels = Value(None, shape, dtype) if dtype == "fp32" else narrow_pixels(ctx, shape, dtype)
    x, held = hooked(linear(tape, pixels, weights, weight.name), leaf=leaf)
    del pixels
    return x, held + rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``ln`` and ``resampler_model``."""
    tape, tensors = ctx.tape, vision.projector
    x = last_rows(ctx, vision, x)
    x = x.view(x.shape[0] // vision.merge, x.shape[1] * vision.merge)
    x = _network(ctx, x, tensors[:6])
    tokens, wide = x.shape
    places = tape.new((tokens,), "int64", "frames")
    frames = index(tape, x, places, x.shape, "even frames"), index(tape, x, places, x.shape, "odd frames")
    del x
    both = cat(tape, frames, (tokens, 2 * wide), "cat frames")
    del frames
    x = plain(ctx, _network(ctx, both, tensors[6:12]), tensors[12], bias=True)
    del both
    norm = tensors[-1]
    return features(ctx, rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape)))


def _network(ctx: Context, x: Value, tensors: tuple[ParameterTensor, ...]) -> Value:
    """Ernie4_5_VLMoeVisionMLP."""
    first, _, second, _, scale, shift = tensors
    inner = plain(ctx, x, first, bias=True)
    del x
    acted = unary(ctx.tape, inner, "gelu")
    del inner
    return layer_norm(ctx, plain(ctx, acted, second, bias=True), (scale, shift))
