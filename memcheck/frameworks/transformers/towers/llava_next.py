"""LLaVA-NeXT: tiles are put together, unpadded, and a learned token ends each row (modeling_llava_next.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers import llava
from memcheck.frameworks.transformers.towers.tiles import given_out, patches_alone, picked, two_matrices, with_class
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """LLaVA's, on the tiles of all pictures in one tensor."""
    picked(ctx, vision, ctx.tokens - ctx.setting.pictures * vision.classes, "fp32")
    return llava.stem(ctx, vision, leaf)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector`` and ``pack_image_features``."""
    newline, *matrices = vision.projector
    x = patches_alone(ctx, vision, x)
    x = two_matrices(ctx, vision, x, tuple(matrices), copies=True)
    return packed(ctx, x, newline)


def packed(ctx: Context, x: Value, newline: ParameterTensor) -> Value:
    """``pack_image_features``: the grid's tiles in one, without padding, a token after each row, the overview."""
    x = copy(ctx.tape, x, "tiles put together")
    x = with_class(ctx, x, newline, ctx.setting.image_tokens or x.shape[0])
    return given_out(ctx, copy(ctx.tape, x, "cat overview"), joins=True)
