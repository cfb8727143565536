"""Gemma 3: average pooling, an RMSNorm and a bare matrix (modeling_gemma3.py, Gemma3MultiModalProjector.forward)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.matrix import product
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.siglip import stem
from memcheck.frameworks.transformers.towers.tiles import given_out, last_rows, pooling
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm`` and ``multi_modal_projector``."""
    tape = ctx.tape
    matrix, norm = vision.projector
    x = last_rows(ctx, vision, x)
    x = pooling(ctx, vision, copy(tape, x, "contiguous"))
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape), unit_offset=True)
    x = copy(tape, x, "contiguous")  # the pooled channels lie apart: the product copies what it is given
    weight = tape.parameter(ctx.parameter(matrix.name, matrix.shape))
    turned = Value(None, matrix.shape[::-1], weight.dtype, weight.origin)
    return given_out(ctx, product(tape, x, turned, matrix.name), joins=False)
