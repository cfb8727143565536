"""Fuyu: patches through a matrix (modeling_fuyu.py, FuyuModel.get_image_features)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.matrix import linear
from memcheck.autograd.tensor import Value
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``vision_embed_tokens``, which is given patches in its own dtype."""
    weight = vision.stem[0]
    weights = ctx.weights(weight, True)
    pixels = Value(None, (ctx.tokens, vision.channels), weights.weight.dtype)
    return linear(ctx.tape, pixels, weights, weight.name), []


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """The rows themselves."""
    return x
