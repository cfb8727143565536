"""SigLIP's stem: a convolution and a table of positions (modeling_siglip.py, SiglipVisionEmbeddings.forward)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import convolve, with_positions
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``. The hook is on ``patch_embedding``."""
    weight, bias, table = vision.stem
    x, held = hooked(convolve(ctx, vision, ctx.tokens, weight, bias), leaf=leaf)
    return with_positions(ctx, x, table), held
