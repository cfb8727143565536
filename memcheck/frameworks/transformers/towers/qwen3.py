"""Qwen3-VL and Qwen3.5: learned positions between grid points, mergers behind several layers (modeling_qwen3_vl.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, copy
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.qwen import features, merge, patch_embedding, rotary_tables
from memcheck.frameworks.transformers.towers.tiles import layer_norm
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

NEIGHBOURS = 4
"""Points of the learned grid that a patch's position is interpolated between."""
MERGER = 6
"""Tensors of a merger: norm and two matrices with biases."""


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed`` and ``pos_embed``; no hook finds them."""
    x = patch_embedding(ctx, vision)
    position = _positions(ctx, vision.stem[2])
    x = add(ctx.tape, x, cast(ctx.tape, position, x.dtype), "add positions")
    return x, rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``merger``, and ``deepstack_merger_list`` on rows that the layers behind them keep anyway, if they have a graph.

    A merger of earlier rows normalises the four that it merges. Its image tokens are added to the stream behind one of
    the first layers of text, so that they live in a list of the model's forward.
    """
    stacked = []
    for index in range(vision.deepstack):
        tensors = vision.projector[MERGER * (index + 1) : MERGER * (index + 2)]
        own = None if x.origin is not None else ctx.tape.new(x.shape, x.dtype, "rows of an earlier layer")
        rows = Value(own, x.shape, x.dtype, x.origin)
        wide = rows.view(ctx.tokens // vision.merge, vision.hidden * vision.merge)
        merged = merge(ctx, vision, layer_norm(ctx, wide, tensors[:2]), tensors[2:])
        stacked += [merged, copy(ctx.tape, merged, "cat image tokens")]
    merger = vision.projector[:MERGER]
    out = features(ctx, merge(ctx, vision, layer_norm(ctx, x, merger[:2]), merger[2:]))
    ctx.returned += stacked
    return _joined(ctx, out, stacked[1::2])


def _joined(ctx: Context, out: Value, others: list[Value]) -> Value:
    """One value for the graph: the gradients of all image tokens arrive together, behind the first layers of text."""
    if not others:
        return out
    tape, shape, dtype = ctx.tape, out.shape, out.dtype

    def run(grad: Storage) -> list[Storage | None]:
        return [grad, *(tape.new(shape, dtype, "index backward") for _ in others)]

    return tape.record(Value(out.storage, shape, dtype), (out, *others), run)


def _positions(ctx: Context, table: ParameterTensor) -> Value:
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

    def run(grad: Storage, kept: object = kept) -> list[Storage | None]:
        wide = tape.new((rows, NEIGHBOURS, width), "fp32", "mul backward")
        narrow = tape.new((rows, NEIGHBOURS, width), dtype, "to backward") if dtype != "fp32" else wide
        del wide
        found = tape.new(table.shape, dtype, "embedding backward") if learns else None
        del narrow
        return [found]

    return tape.record(out, (tape.parameter(p),), run)
