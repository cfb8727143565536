"""PaliGemma: one matrix (modeling_paligemma.py, PaliGemmaMultiModalProjector.forward)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.siglip import stem
from memcheck.frameworks.transformers.towers.tiles import given_out, last_rows, plain
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm`` and ``multi_modal_projector``."""
    x = last_rows(ctx, vision, x)
    return given_out(ctx, plain(ctx, x, vision.projector[0], bias=True), joins=False)
