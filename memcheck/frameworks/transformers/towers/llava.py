"""LLaVA on CLIP: a class token, a norm before the layers, two matrices (modeling_llava.py, modeling_clip.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import (
    convolve,
    given_out,
    layer_norm,
    patches_alone,
    two_matrices,
    with_class,
    with_positions,
)
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings`` and ``pre_layrnorm``. The hook is on ``patch_embedding``."""
    token, weight, table, *norm = vision.stem
    patches = ctx.tokens - ctx.setting.pictures * vision.classes
    x, held = hooked(convolve(ctx, vision, patches, weight, None), leaf=leaf)
    x = with_positions(ctx, with_class(ctx, x, token, ctx.tokens), table)
    return layer_norm(ctx, x, tuple(norm)), held


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector`` on the patches of the layer that is read."""
    x = patches_alone(ctx, vision, x)
    return given_out(ctx, two_matrices(ctx, vision, x, vision.projector, copies=True), joins=True)
