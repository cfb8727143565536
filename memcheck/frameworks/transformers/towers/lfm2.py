"""LFM2-VL: rows of padded pictures, positions resized to each, pixels unshuffled (modeling_lfm2_vl.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, copy
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import (
    given_out,
    last_rows,
    layer_norm,
    plain,
    rows_of_pixels,
    two_matrices,
)
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, whose matrix the hook is on, and the mask of padded rows."""
    tape = ctx.tape
    matrix, _, table = vision.stem
    pixels = rows_of_pixels(ctx, vision)
    x, held = hooked(plain(ctx, pixels, matrix, bias=True), leaf=leaf)
    del pixels
    x = add(tape, x, _positions(ctx, table, x.shape), "add positions")
    if ctx.setting.attention not in ("flash", "flex"):
        each = ctx.tokens // max(1, ctx.setting.pictures)
        dtype = x.dtype if ctx.setting.attention == "eager" else "bool"
        masks = held if ctx.setting.recomputed else ctx.returned  # an argument of every layer
        masks.append(tape.value((ctx.setting.pictures, 1, each, each), dtype, "padding mask"))
    return x, held


def _positions(ctx: Context, table: ParameterTensor, shape: tuple[int, ...]) -> Value:
    """``resize_positional_embeddings``: each picture's are interpolated and written into rows of one tensor, whose
    gradient is cloned by each write that takes its part of it (CopySlices).
    """
    tape = ctx.tape
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    learns, dtype, whole = p.requires_grad, p.dtype, table.shape
    out = tape.value(shape, dtype, "resized positions")

    def run(grad: Storage) -> list[Storage | None]:
        kept = tape.new(shape, dtype, "CopySlices backward")
        tape.new(whole, dtype, "interpolate backward")
        del kept
        return [tape.new(whole, dtype, "sum over pictures") if learns else None]

    return tape.record(out, (tape.parameter(p),), run)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, and ``multi_modal_projector`` on the real rows of each picture."""
    x = last_rows(ctx, vision, x)
    rows = ctx.setting.image_tokens * vision.merge or x.shape[0]
    x = _real(ctx, x, (rows, x.shape[1]))
    x = copy(ctx.tape, copy(ctx.tape, x, "pixel unshuffle"), "pixel unshuffle")
    x = x.view(rows // vision.merge, vision.hidden * vision.merge)
    norm = vision.projector[:2] if vision.projector[0].group == "norm" else ()
    x = layer_norm(ctx, x, norm)
    return given_out(ctx, two_matrices(ctx, vision, x, vision.projector[len(norm) :]), joins=True)


def _real(ctx: Context, x: Value, shape: tuple[int, int]) -> Value:
    """``feature[:length]``: a view, whose gradient is padded with zeros."""
    tape, whole, dtype = ctx.tape, x.shape, x.dtype
    if shape == whole:
        return x
    return operator(tape, Value(x.storage, shape, dtype), x, "slice backward")
