"""Command A Vision: pixels are shuffled, and one matrix makes two halves (modeling_cohere2_vision.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import mul
from memcheck.autograd.modules import activation
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.siglip import stem
from memcheck.frameworks.transformers.towers.tiles import given_out, last_rows, plain, shuffled
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm`` and ``multi_modal_projector`` (Cohere2VisionMultiModalProjector.forward)."""
    x = shuffled(ctx, vision, last_rows(ctx, vision, x))
    return given_out(ctx, gated_halves(ctx, x, vision.projector), joins=False)


def gated_halves(ctx: Context, x: Value, tensors: tuple[ParameterTensor, ...]) -> Value:
    """``linear_2(silu(gate) * x)``, where ``x, gate`` are the halves of what ``linear_1`` makes."""
    tape = ctx.tape
    first, _, second, _ = tensors
    both = plain(ctx, x, first, bias=True)
    del x
    half = (*both.shape[:-1], both.shape[-1] // 2)
    up, gate = tape.views(both, half, half)
    del both
    inner = mul(tape, activation(tape, gate, "silu"), up)
    return plain(ctx, inner, second, bias=True)
