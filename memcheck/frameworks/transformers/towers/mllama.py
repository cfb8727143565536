"""Llama 3.2 Vision's tower: tables for each grid of tiles, gates, padded rows, and a mask of all tiles of a picture.

modeling_mllama.py of transformers 5.23, MllamaVisionModel.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value, promote
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import convolve, layer_norm, plain, with_class, with_positions
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embedding``, whose output the hook is on, to the padded rows, and the mask."""
    tape, pictures = ctx.tape, max(1, ctx.setting.pictures)
    weight, before, before_gate, token, gate, table, tiles, *norm = vision.stem
    x, held = hooked(convolve(ctx, vision, ctx.tokens - pictures * vision.classes, weight, None), leaf=leaf)
    x = _by_grid(ctx, x, before, before_gate)
    real = ctx.tokens * vision.tile_tokens // vision.tile
    x = with_class(ctx, x, token, real)
    x = with_positions(ctx, x, table, looked_up=False)
    x = _by_grid(ctx, x, tiles, gate)
    x = _padded(ctx, layer_norm(ctx, x, tuple(norm)), ctx.tokens)
    if ctx.setting.attention != "flex":
        each, dtype = ctx.tokens // pictures, tape.autocast or ctx.setting.params  # a product makes it
        first = tape.new((pictures, each, each), dtype, "product of masks")
        masks = ctx.returned if ctx.setting.attention == "eager" else held  # a sum keeps nothing of it
        masks.append(tape.value((pictures, 1, each, each), dtype, "mask of tiles"))
        del first
    return x, held


def _by_grid(ctx: Context, x: Value, table: ParameterTensor, gate: ParameterTensor) -> Value:
    """``x + gate.tanh() * embedding(aspect_ratio_ids)``: what was looked up for each picture is kept for the gate."""
    tape = ctx.tape
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    g = ctx.parameter(gate.name, gate.shape)
    some = (max(1, ctx.setting.pictures), table.shape[1])
    looked = tape.new(some, p.dtype, "looked up for the grid")
    gated = tape.new(some, p.dtype, "gated")
    out = tape.value(x.shape, promote(x.dtype, p.dtype), "add embedding of the grid")
    del gated
    wants, learns, opens = x.origin is not None, p.requires_grad, g.requires_grad
    kept = looked if opens else None
    shape, stream, dtype, whole = x.shape, x.dtype, p.dtype, table.shape

    def run(grad: Storage) -> list[Storage | None]:
        passed = None if not wants else grad if grad.dtype == stream else tape.new(shape, stream, "to backward")
        if not learns and not opens:
            return [passed, None, None]
        summed = tape.new(some, dtype, "sum over rows")
        found: list[Storage | None] = [passed, None, None]
        if opens:
            product = tape.new(some, dtype, "gate backward")
            found[2] = tape.new((1,), dtype, "sum")
            del product
        if learns:
            scaled = tape.new(some, dtype, "mul backward")
            del summed
            found[1] = tape.new(whole, dtype, "embedding backward")
            del scaled
        return found

    return tape.record(out, (x, tape.parameter(p), tape.parameter(g)), run, saves=(kept,))


def _padded(ctx: Context, x: Value, rows: int) -> Value:
    """``F.pad`` of the rows of each tile; its backward is one with fewer."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    return operator(tape, tape.value((rows, shape[1]), dtype, "pad"), x, "pad backward")


def between(ctx: Context, vision: Vision, x: Value) -> Value:
    """``layernorm_post`` and ``post_tile_positional_embedding``, in front of the global layers."""
    *norm, table, gate = vision.between
    return _by_grid(ctx, layer_norm(ctx, x, tuple(norm)), table, gate)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """The last rows and those of earlier layers, without padding, and ``multi_modal_projector``."""
    tape, hidden = ctx.tape, x.shape[1]
    real, count = ctx.tokens * vision.tile_tokens // vision.tile, len(vision.gathered)
    shape, dtype = x.shape, x.dtype
    stacked = tape.new((shape[0], hidden * count), dtype, "stack of earlier rows")
    out = tape.value((real, hidden * (count + 1)), dtype, "cat earlier rows")
    del stacked

    stack = ((shape[0], hidden * count), dtype, "stack backward")  # earlier layers' parts of it wait for them
    x = operator(tape, out, x, "slice backward", later=[stack])
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    return plain(ctx, x, vision.projector[0], bias=True)
