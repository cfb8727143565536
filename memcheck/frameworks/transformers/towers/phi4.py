"""Phi-4-multimodal: SigLIP's rows of a layer before the last, pooled by fours, a token after each row of squares.

modeling_phi4_multimodal.py of transformers 5.23: Phi4MultimodalVisionEmbeddings, Phi4MultimodalImageEmbedding.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.idefics2 import with_positions_of_rows
from memcheck.frameworks.transformers.towers.idefics3 import masked
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import convolve, pooled_beside, pooling, two_matrices, with_class
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``. The hook is on ``patch_embedding``. Positions are looked up for every row."""
    weight, bias, table = vision.stem
    x, held = hooked(convolve(ctx, vision, ctx.tokens, weight, bias, outside=True), leaf=leaf)
    x = with_positions_of_rows(ctx, x, table)
    _, masks = masked(ctx, x, leaf=False)
    return x, held + masks


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``image_token_compression``, ``img_projection_up`` and ``img_projection_down``."""
    whole, each, *matrices = vision.projector
    tokens = ctx.setting.image_tokens or x.shape[0] // vision.merge
    normed = Value(ctx.tape.new(x.shape, x.dtype, "post_layernorm"), x.shape, x.dtype)
    turned = Value(ctx.tape.new(x.shape, x.dtype, "rows of all squares side by side"), x.shape, x.dtype)
    pooled_beside(ctx, vision, x)
    ctx.named = []  # `get_img_features` has taken its layer out of the tower's output
    del normed, turned
    x = pooling(ctx, vision, x)
    x = _cut(ctx, x)
    x = with_class(ctx, x, each, tokens)
    x = with_class(ctx, x, whole, tokens)
    x = two_matrices(ctx, vision, x, tuple(matrices))
    return copy(ctx.tape, x, "cat image tokens")


def _cut(ctx: Context, x: Value) -> Value:
    """The whole picture's rows and the squares', which are put together by a copy; the gradient of each is padded."""
    out = ctx.tape.value(x.shape, x.dtype, "squares put together")
    return operator(ctx.tape, out, x, "slice backward", later=[(x.shape, x.dtype, "slice backward")])
