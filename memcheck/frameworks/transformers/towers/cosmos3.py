"""Cosmos3 Edge: rows of all pictures, positions resized to each, four patches merged (modeling_cosmos3_edge.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.qwen import features, hooked, merge
from memcheck.frameworks.transformers.towers.tiles import last_rows, layer_norm, plain, rows_of_pixels
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, which no hook finds. Pixels in the tower's dtype are a variable of the model's."""
    tape, target = ctx.tape, ctx.setting.params
    matrix, _, table = vision.stem
    pixels = rows_of_pixels(ctx, vision)
    if target != "fp32":
        ctx.returned.append(Value(pixels.storage, pixels.shape, target))
    x, held = hooked(plain(ctx, pixels, matrix, bias=True), leaf=leaf)
    del pixels
    return add(tape, x, _positions(ctx, table), "add positions"), held


def _positions(ctx: Context, table: ParameterTensor) -> Value:
    """``resize_positional_embeddings``: for each picture the table is resized, put in the order of the rows, repeated;
    all are put together. On a GPU nothing is widened to fp32.
    """
    tape, rows, width = ctx.tape, ctx.tokens, table.shape[1]
    pictures = max(1, ctx.setting.pictures)
    each = (-(-rows // pictures), width)
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    learns, dtype, whole = p.requires_grad, p.dtype, table.shape
    chunks, ordered = [], None
    for _ in range(pictures):
        resized = tape.new(each, dtype, "interpolate")
        ordered = tape.new(each, dtype, "block order")
        del resized
        chunks.append(tape.new(each, dtype, "repeat"))
    out = tape.value((rows, width), dtype, "cat positions")
    chunks.clear()
    del ordered

    def run(grad: Storage) -> list[Storage | None]:
        total = None
        for _ in range(pictures if learns else 0):
            moved = tape.new(each, dtype, "contiguous")
            found = tape.new(whole, dtype, "interpolate backward")
            del moved
            total = found if total is None or not tape.subclass else tape.new(whole, dtype, "add gradients")
            del found
        return [total]

    return tape.record(out, (tape.parameter(p),), run)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, and ``projector``."""
    x = layer_norm(ctx, last_rows(ctx, vision, x), vision.projector[:2])
    return features(ctx, merge(ctx, vision, x, vision.projector[2:]))
