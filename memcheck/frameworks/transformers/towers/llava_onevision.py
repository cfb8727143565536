"""LLaVA-OneVision: SigLIP's tiles of a grid, put together and made smaller (modeling_llava_onevision.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers import siglip
from memcheck.frameworks.transformers.towers.llava_next import packed
from memcheck.frameworks.transformers.towers.tiles import picked, two_matrices
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """SigLIP's, on the tiles of all pictures in one tensor."""
    picked(ctx, vision, ctx.tokens, "fp32")
    return siglip.stem(ctx, vision, leaf)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector`` and ``pack_image_features``, on rows in front of the tower's last norm.

    The tower's output also has them after it, which nothing reads.
    """
    newline, *matrices = vision.projector
    ctx.returned.append(ctx.tape.value(x.shape, "fp32" if ctx.tape.autocast else x.dtype, "post_layernorm"))
    x = two_matrices(ctx, vision, x, tuple(matrices), copies=ctx.setting.pictures > 1)
    return packed(ctx, x, newline)
