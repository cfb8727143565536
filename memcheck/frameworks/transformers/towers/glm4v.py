"""GLM-4.1V and its successors: a norm after the patches, positions sampled from a grid (modeling_glm4v.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.glm_ocr import project
from memcheck.frameworks.transformers.towers.qwen import patch_embedding, rotary_tables
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

__all__ = ["project", "stem"]


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed``, ``post_conv_layernorm``, the rotary tables and ``embeddings``; no hook finds them."""
    tape = ctx.tape
    *_, norm, table = vision.stem
    x = patch_embedding(ctx, vision)
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape))
    tables = rotary_tables(ctx, vision)
    return _with_positions(ctx, x, table), tables


def _with_positions(ctx: Context, x: Value, table: ParameterTensor) -> Value:
    """``Glm4vVisionEmbeddings.forward``: the table in fp32, sampled at each patch's place by ``grid_sample``, in the
    weights' dtype; every step has a variable until the sum is made.
    """
    tape = ctx.tape
    p = tape.parameter(ctx.parameter(table.name.removesuffix(".weight"), table.shape))
    wide = cast(tape, p, "fp32")
    grid = tape.new((x.shape[0], 2), "fp32", "sampling grid")
    sampled = _sampled(ctx, wide, grid, x.shape)
    positions = cast(tape, sampled, p.dtype)
    return add(tape, x, positions, "add positions")


def _sampled(ctx: Context, table: Value, grid: Storage, shape: tuple[int, ...]) -> Value:
    """``F.grid_sample``: keeps the table and the grid; backward makes a gradient of each."""
    out = ctx.tape.value(shape, table.dtype, "grid_sample")
    of_grid = (grid.shape, table.dtype, "grid_sample backward of the grid")
    return operator(ctx.tape, out, table, "grid_sample backward", saves=(table, grid), later=[of_grid])
