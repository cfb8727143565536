"""PerceptionLM: two matrices after Perception Encoder's patches, pooled (modeling_perception_lm.py, timm's eva.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.tiles import (
    convolve,
    given_out,
    layer_norm,
    patches_alone,
    pooling,
    two_matrices,
    with_class,
    with_positions,
)
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed``, ``_pos_embed`` and ``norm_pre``. The rotary table is a buffer."""
    *token, table, weight, scale, shift = vision.stem
    patches = ctx.tokens - ctx.setting.pictures * vision.classes
    x = convolve(ctx, vision, patches, weight, None, outside=True)
    if token:
        x = with_class(ctx, x, token[0], ctx.tokens)
    x = with_positions(ctx, x, table, looked_up=False)
    return layer_norm(ctx, x, (scale, shift)), []


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector``, on patches that it transposes."""
    x = patches_alone(ctx, vision, x)
    x = two_matrices(ctx, vision, x, vision.projector, copies=True)
    return given_out(ctx, pooling(ctx, vision, x) if vision.merge > 1 else x, joins=False)
