"""Mistral 3: an RMSNorm, patches unfolded picture by picture and merged, two matrices (modeling_mistral3.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.pixtral import stem
from memcheck.frameworks.transformers.towers.tiles import given_out, plain, two_matrices
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector``."""
    tape = ctx.tape
    norm, merging, *matrices = vision.projector
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape))
    x = copy(tape, copy(tape, x, "unfold"), "cat pictures")
    x = plain(ctx, x.view(x.shape[0] // vision.merge, x.shape[1] * vision.merge), merging)
    return given_out(ctx, two_matrices(ctx, vision, x, tuple(matrices)), joins=True)
