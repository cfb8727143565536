"""Qwen3-VL and Qwen3.5: learned positions between grid points, mergers after several layers (modeling_qwen3_vl.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.qwen import features, hooked, merge, patch_embedding, rotary_tables
from memcheck.frameworks.transformers.towers.tiles import layer_norm
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

NEIGHBOURS = 4
"""Points of the learned grid that a patch's position is interpolated between."""


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed`` and ``pos_embed``; no hook finds them, but where a trainer names ``patch_embed`` for it."""
    x, held = hooked(patch_embedding(ctx, vision), leaf=leaf)
    position = interpolated_positions(ctx, vision.stem[2])
    ctx.returned.append(Value(position.storage, position.shape, position.dtype))  # `pos_embeds`
    x = add(ctx.tape, x, cast(ctx.tape, position, x.dtype), "add positions")
    return x, held + rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``merger``. Image tokens of earlier rows are put together at the same time."""
    merger = vision.projector
    return features(ctx, merge(ctx, vision, layer_norm(ctx, x, merger[:2]), merger[2:]))


def merged(ctx: Context, vision: Vision, tensors: tuple[ParameterTensor, ...], x: Value) -> Value:
    """``deepstack_merger_list``: a merger of earlier rows normalises the four that it merges."""
    wide = x.view(ctx.tokens // vision.merge, vision.hidden * vision.merge)
    return merge(ctx, vision, layer_norm(ctx, wide, tensors[:2]), tensors[2:])


def interpolated_positions(ctx: Context, table: ParameterTensor) -> Value:
    """``(pos_embed(indices) * weights[:, :, None]).sum(1)``, in fp32: [rows, hidden]."""
    tape, rows = ctx.tape, ctx.tokens
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    width, dtype, learns = table.shape[1], p.dtype, p.requires_grad
    found = tape.new((rows, NEIGHBOURS, width), dtype, "pos_embed")
    weighted = tape.new((rows, NEIGHBOURS, width), "fp32", "pos_embed * weights")
    del found
    out = tape.value((rows, width), "fp32", "interpolated positions")
    del weighted
    kept = tape.new((rows, NEIGHBOURS), "int64", "position indices"), tape.new((rows, NEIGHBOURS), "fp32", "weights")

    def run(grad: Storage) -> list[Storage | None]:
        wide = tape.new((rows, NEIGHBOURS, width), "fp32", "mul backward")
        narrow = tape.new((rows, NEIGHBOURS, width), dtype, "to backward") if dtype != "fp32" else wide
        del wide
        found = tape.new(table.shape, dtype, "embedding backward") if learns else None
        del narrow
        return [found]

    return tape.record(out, (tape.parameter(p),), run, saves=kept)
