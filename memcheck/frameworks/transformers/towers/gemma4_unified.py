"""Gemma 4 without towers: norms around a matrix and learned positions (Gemma4UnifiedVisionEmbedder.forward)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add
from memcheck.autograd.indexing import index
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.tiles import given_out, layer_norm, plain
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

AXES = 2


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """What makes rows of padded patches. ``pixel_values`` and the positions are variables until all of it is done."""
    tape = ctx.tape
    weight, bias, dense, offset, weight_2, bias_2, table, weight_3, bias_3 = vision.stem
    target = ctx.setting.params
    shape = (ctx.tokens, vision.channels)
    pixels = Value(None, shape, target) if target == "fp32" else tape.value(shape, target, "pixel_values")
    ctx.returned.append(Value(pixels.storage, shape, target))
    x = layer_norm(ctx, pixels, (weight, bias))
    del pixels
    x = plain(ctx, x, dense, bias=bool(offset))
    x = layer_norm(ctx, x, (weight_2, bias_2))
    positions = _positions(ctx, table)
    ctx.returned.append(Value(positions.storage, positions.shape, positions.dtype))
    x = add(tape, x, positions, "add positions")
    del positions
    return layer_norm(ctx, x, (weight_3, bias_3)), []


def _positions(ctx: Context, table: ParameterTensor) -> Value:
    """``(pos_embedding[clamped, axes] * valid).sum(-2)``: both axes' rows are looked up at once; their gradient is made
    as wide, and scattered into one of the whole table.
    """
    tape, rows = ctx.tape, ctx.tokens
    p = ctx.parameter(table.name, table.shape)
    dtype, learns, width = p.dtype, p.requires_grad, table.shape[-1]
    clamped = tape.new((rows, AXES), "int64", "clamped positions")
    valid = tape.new((rows, AXES, 1), dtype, "valid positions")
    found = tape.new((rows, AXES, width), dtype, "pos_embedding[clamped, axes]")
    masked = tape.new((rows, AXES, width), dtype, "times valid")
    del found
    out = tape.value((rows, width), dtype, "sum of both axes")
    del masked

    def run(grad: Storage) -> list[Storage | None]:
        if not learns:
            return [None]
        wide = tape.new((rows, AXES, width), dtype, "mul backward")
        whole = tape.new(table.shape, dtype, "index backward")
        del wide
        return [whole]

    return tape.record(out, (tape.parameter(p),), run, saves=(clamped, valid))


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multimodal_embedder``, and the rows that are no padding; their tokens are split and put together again."""
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    x = rms_norm_pieces(ctx.tape, x, None)
    x = plain(ctx, x, vision.projector[0])
    tokens = ctx.setting.image_tokens or x.shape[0]
    where = ctx.tape.new((tokens,), "int64", "non_pad_mask")
    x = index(ctx.tape, x, where, (tokens, x.shape[1]), "pooler_output[non_pad_mask]")
    return given_out(ctx, x, joins=True)
