"""Gemma 4: padded pictures, positions of two tables, average pooling as a product (modeling_gemma4.py)."""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, scale, shift
from memcheck.autograd.indexing import index
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.tiles import given_out, plain
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embedder``, the rotary tables in the rows' dtype, and the mask of padded rows, which layers are given.

    No hook finds the patch embedding: the class has no ``get_input_embeddings`` of its own.
    """
    tape, rows = ctx.tape, ctx.tokens
    matrix, table = vision.stem
    shape = (rows, vision.channels)
    shifted = tape.value(shape, "fp32", "pixel_values - 0.5")
    pixels = tape.value(shape, "fp32", "2 * pixel_values")
    del shifted
    target = ctx.setting.params
    narrow = pixels if target == "fp32" else tape.value(shape, target, "pixel_values")
    del pixels
    x = plain(ctx, narrow, matrix)
    del narrow
    x = add(tape, x, _positions(ctx, table, (rows, vision.hidden)), "add positions")
    width = vision.blocks[0][0].mixer
    tables = (rows, getattr(width, "head_dim", 0))
    held = [tape.value(tables, x.dtype, "rotary table") for _ in range(2)]
    if ctx.setting.attention not in ("flash", "flex"):
        each = rows // max(1, ctx.setting.pictures)
        dtype = x.dtype if ctx.setting.attention == "eager" else "bool"
        held.append(tape.value((ctx.setting.pictures, 1, each, each), dtype, "padding mask"))
    return x, held


def _positions(ctx: Context, table: ParameterTensor, shape: tuple[int, int]) -> Value:
    """``where(padding, 0, x_emb + y_emb)``: both are looked up in a slice of one table, each of which has a gradient
    as large as the table.
    """
    tape = ctx.tape
    p = ctx.parameter(table.name, table.shape)
    learns, dtype, whole = p.requires_grad, p.dtype, table.shape
    clamped = tape.new((shape[0], 2), "int64", "clamped positions")
    parts = [tape.new(shape, dtype, "embedding") for _ in range(2)]
    summed = tape.new(shape, dtype, "x_emb + y_emb")
    parts.clear()
    out = tape.value(shape, dtype, "position embeddings")
    del summed
    padding = tape.new(shape[:1], "bool", "padding positions")

    def run(grad: Storage) -> list[Storage | None]:
        masked = tape.new(shape, dtype, "where backward")
        total = None
        for _ in range(2 if learns else 0):
            rows = tape.new(whole[1:], dtype, "embedding backward")
            slice = tape.new(whole, dtype, "select backward")
            del rows
            total = slice
        del masked
        return [total]

    return tape.record(out, (tape.parameter(p),), run, saves=(clamped, padding))


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``pooler``, the real rows of its result, standardised, in the rows' dtype; then ``embed_vision``."""
    tape, dtype = ctx.tape, x.dtype
    pooled = _pooled(ctx, vision, x)
    del x
    wide = scale(tape, cast(tape, pooled, "fp32"), "sqrt(hidden)")
    del pooled
    where = tape.new((wide.shape[0], 2), "int64", "pooler mask")
    wide = index(tape, wide, where, wide.shape, "hidden_states[pooler_mask]")
    if vision.standardized:
        wide = scale(tape, shift(tape, wide, "- std_bias"), "* std_scale")
    x = cast(tape, wide, dtype)
    del wide
    ctx.returned.append(x)  # `last_hidden_state`
    x = rms_norm_pieces(tape, x, None)
    return given_out(ctx, plain(ctx, x, vision.projector[0]), joins=True)


def _pooled(ctx: Context, vision: Vision, x: Value) -> Value:
    """``_avg_pool_by_positions``: an fp32 product with the one-hot weights of every padded row of a picture."""
    tape, dtype = ctx.tape, x.dtype
    pictures = max(1, ctx.setting.pictures)
    each = x.shape[0] // pictures
    slots, width = each // vision.merge, x.shape[1]
    masked = _filled(ctx, x)
    del x
    shape = (pictures, each, slots)
    places = tape.new(shape, "int64", "one_hot")
    ones = tape.new(shape, "fp32", "one_hot.float()")
    del places
    weights = tape.value(shape, "fp32", "pooling weights")
    del ones
    autocast = tape.autocast
    rows = cast(tape, masked, "fp32")
    rows = Value(rows.storage, (pictures, each, width), rows.dtype, rows.origin)
    del masked
    out = kernels.batched(tape, weights, rows, (pictures, slots, width), "pooling")
    del rows
    out = cast(tape, out, dtype) if not autocast else out
    compared = tape.new(shape, "bool", "weights == 0")
    del compared, weights
    return out.view(pictures * slots, width)


def _filled(ctx: Context, x: Value) -> Value:
    """``masked_fill(padding, 0)``: keeps the mask of rows."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    out = tape.value(shape, dtype, "masked_fill")
    mask = tape.new(shape[:1], "bool", "padding positions")
    return operator(tape, out, x, "masked_fill backward", saves=(mask,))
