"""DeepSeek-VL: SigLIP's normed rows through two matrices (modeling_deepseek_vl.py, DeepseekVLAligner.forward)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.siglip import stem
from memcheck.frameworks.transformers.towers.tiles import given_out, last_rows, two_matrices
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm`` and ``aligner``."""
    return given_out(ctx, two_matrices(ctx, vision, last_rows(ctx, vision, x), vision.projector), joins=False)
