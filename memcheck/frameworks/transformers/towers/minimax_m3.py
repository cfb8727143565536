"""MiniMax M3 VL: patches in a row, a norm in front of the layers, two projectors (modeling_minimax_m3_vl.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import features
from memcheck.frameworks.transformers.towers.tiles import convolve, layer_norm, two_matrices
from memcheck.models.vision import TowerAttention, Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, rotary tables in the norm's dtype, ``pre_layrnorm``; no hook finds them."""
    weight, *norm = vision.stem
    x = convolve(ctx, vision, ctx.tokens, weight, None)
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `embeds`, a variable while the layers run
    mixer = vision.blocks[0][0].mixer
    rotated = mixer.rotary_dim if isinstance(mixer, TowerAttention) else 0
    tables = [ctx.tape.value((ctx.tokens, rotated), ctx.setting.params, "rotary table") for _ in range(2)]
    return layer_norm(ctx, x, tuple(norm)), tables


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector``: two matrices for each patch, two for each four of them."""
    wide = two_matrices(ctx, vision, x, vision.projector[:4])
    del x
    wide = wide.view(wide.shape[0] // vision.merge, wide.shape[1] * vision.merge)
    return features(ctx, two_matrices(ctx, vision, wide, vision.projector[4:]))
