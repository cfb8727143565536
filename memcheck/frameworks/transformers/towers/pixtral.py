"""Pixtral under LLaVA: rows of all pictures in one sequence, an RMSNorm in front (modeling_pixtral.py)."""

from __future__ import annotations

from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import convolve, given_out, two_matrices
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_conv``, whose output pictures are cut out of and put together again, ``ln_pre``; tables and mask.

    cos and sin are in the rows' dtype. The mask over all pictures, [1, 1, rows, rows], is additive in that dtype; it is
    gone when the tower returns, unless a kernel saves it as it is, or a checkpoint as an argument.
    """
    tape = ctx.tape
    weight, norm = vision.stem
    x, held = hooked(convolve(ctx, vision, ctx.tokens, weight, None), leaf=leaf)
    x = rms_norm_pieces(tape, copy(tape, x, "cat pictures"), ctx.parameter(norm.name, norm.shape))
    shape = (ctx.tokens, vision.hidden // vision.heads)
    held += [tape.value(shape, x.dtype, "rotary table") for _ in range(2)]
    if ctx.setting.attention not in ("flash", "flex"):
        saved = ctx.setting.attention != "eager" and ctx.tokens % MASK_ALIGNMENT == 0
        saved = saved and x.dtype == (tape.autocast or x.dtype)
        masks = held if saved or ctx.setting.recomputed else ctx.returned
        masks.append(tape.value((1, 1, ctx.tokens, ctx.tokens), x.dtype, "picture mask"))
    return x, held


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector``."""
    return given_out(ctx, two_matrices(ctx, vision, x, vision.projector), joins=True)
