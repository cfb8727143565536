"""Aya Vision: pixels are shuffled and normed, and one matrix makes two halves (modeling_aya_vision.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.cohere2_vision import gated_halves
from memcheck.frameworks.transformers.towers.siglip import stem
from memcheck.frameworks.transformers.towers.tiles import given_out, layer_norm, shuffled
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector`` on the last layer's rows (AyaVisionMultiModalProjector.forward).

    The tower's output also has them after its norm, which nothing reads.
    """
    ctx.returned.append(ctx.tape.value(x.shape, "fp32" if ctx.tape.autocast else x.dtype, "post_layernorm"))
    x = layer_norm(ctx, shuffled(ctx, vision, x), vision.projector)
    return given_out(ctx, gated_halves(ctx, x, vision.projector[2:]), joins=False)
