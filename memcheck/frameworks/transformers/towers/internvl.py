"""InternVL: a class token in front, pixels shuffled, LayerNorm and two matrices (modeling_internvl.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import (
    convolve,
    given_out,
    last_rows,
    layer_norm,
    patches_alone,
    picked,
    shuffled,
    two_matrices,
    with_class,
    with_positions,
)
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``. The hook is on ``patch_embeddings``."""
    token, table, weight, bias = vision.stem
    patches = ctx.tokens - ctx.setting.pictures * vision.classes
    pixels = picked(ctx, vision, patches, ctx.setting.params) if ctx.setting.params != "fp32" else None
    x, held = hooked(convolve(ctx, vision, patches, weight, bias, pixels=pixels), leaf=leaf)
    return with_positions(ctx, with_class(ctx, x, token, ctx.tokens), table, looked_up=False), held


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``pixel_shuffle`` and ``multi_modal_projector``."""
    x = patches_alone(ctx, vision, last_rows(ctx, vision, x))
    x = layer_norm(ctx, shuffled(ctx, vision, x), vision.projector)
    return given_out(ctx, two_matrices(ctx, vision, x, vision.projector[2:]), joins=False)
