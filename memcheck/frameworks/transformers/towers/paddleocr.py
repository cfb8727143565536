"""PaddleOCR-VL: SigLIP's patches of all pictures as rows, positions between grid points (modeling_paddleocr_vl.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, copy
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import features, hooked, merge, rotary_tables
from memcheck.frameworks.transformers.towers.qwen3 import interpolated_positions
from memcheck.frameworks.transformers.towers.tiles import convolve, last_rows, layer_norm
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``. The hook is on ``patch_embedding``."""
    weight, bias, table = vision.stem
    x, held = hooked(convolve(ctx, vision, ctx.tokens, weight, bias, outside=True), leaf=leaf)
    position = interpolated_positions(ctx, table)
    x = add(ctx.tape, x, cast(ctx.tape, position, x.dtype), "add positions")
    if not (leaf or ctx.setting.trained or (ctx.setting.adapter is not None and ctx.setting.adapter.targets)):
        ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `inputs_embeds` of the encoder, which nothing saves
    return x, held + rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, and ``projector``, which puts four patches side by side by a copy."""
    x = last_rows(ctx, vision, x)
    x = copy(ctx.tape, layer_norm(ctx, x, vision.projector[:2]), "merge patches")
    return features(ctx, merge(ctx, vision, x, vision.projector[2:]))
