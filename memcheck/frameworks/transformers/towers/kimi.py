"""MoonViT: learned positions by a weighted sum of sixteen, rows merged by fours after the last norm.

modeling_kimi_k25.py of transformers 5.23: Kimi_K25VisionPositionEmbeddings, Kimi_K25VisionModel.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.qwen import features, hooked, merge, patch_embedding, rotary_tables
from memcheck.frameworks.transformers.towers.tiles import last_rows, layer_norm
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

NEIGHBOURS = 16
"""Points of the learned grid in a bicubic sum."""


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed``, positions in space and in time (a fixed table in fp32), and the rotary tables."""
    tape = ctx.tape
    x, held = hooked(_patches(ctx, vision), leaf=leaf)
    position = _positions(ctx, vision.stem[2])
    frames = Value(tape.new(position.shape, "fp32", "positions in time"), position.shape, "fp32")
    position = add(tape, position, frames, "add positions in time")
    del frames
    return add(tape, x, cast(tape, position, x.dtype), "add positions"), held + rotary_tables(ctx, vision)


def _patches(ctx: Context, vision: Vision) -> Value:
    """``proj``, a convolution over pixels that arrive in its dtype, or that autocast casts."""
    own = vision._replace(stem=vision.stem[:2])
    if ctx.tape.autocast:
        return patch_embedding(ctx, own)
    tape = ctx.tape
    weight, bias = (ctx.parameter(t.name.removesuffix(".weight"), t.shape) for t in own.stem)
    out = tape.value((ctx.tokens, vision.hidden), weight.dtype, "patch_embed")

    def run(grad: Storage) -> list[Storage | None]:
        return [tape.new(p.shape, p.dtype, "patch_embed dW") if p.requires_grad else None for p in (weight, bias)]

    return tape.record(out, (tape.parameter(weight), tape.parameter(bias)), run)


def _positions(ctx: Context, table: ParameterTensor) -> Value:
    """``F.embedding_bag(indices, table, per_sample_weights=weights, mode="sum")``: keeps indices and weights."""
    tape, rows = ctx.tape, ctx.tokens
    p = ctx.parameter(table.name, table.shape)
    width, dtype, learns = table.shape[2], p.dtype, p.requires_grad
    out = tape.value((rows, width), dtype, "embedding_bag")
    kept = tape.new((rows, NEIGHBOURS), "int64", "position indices"), tape.new((rows, NEIGHBOURS), dtype, "weights")
    if not learns:
        return out
    return operator(tape, out, tape.parameter(p), (table.shape, dtype, "embedding_bag backward"), saves=kept)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``final_layernorm``, the mean over frames of what four rows lie in, ``mm_projector``."""
    tape = ctx.tape
    x = last_rows(ctx, vision, x)
    shape, dtype = x.shape, x.dtype
    picked = tape.value(shape, dtype, "rows by merge_index")
    kept = tape.new((shape[0],), "int64", "merge_index")
    picked = operator(tape, picked, x, "index backward", saves=(kept,))
    pooled = tape.value(shape, dtype, "mean over frames")
    pooled = operator(tape, pooled, picked, (shape, dtype, "mean backward"))
    del picked, x
    ctx.returned.append(Value(pooled.storage, pooled.shape, pooled.dtype))
    normed = layer_norm(ctx, pooled, vision.projector)
    return features(ctx, merge(ctx, vision, normed, vision.projector[2:]))
