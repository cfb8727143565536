"""HyperCLOVA X Vision V2: Qwen2.5-VL's windows and merger, and a matrix (modeling_hyperclovax_vision_v2.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.indexing import index
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import features, hooked, merge, rotary_tables
from memcheck.frameworks.transformers.towers.tiles import convolve, plain
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed``, which casts the pixels itself, and rows and rotary tables picked by ``window_index``."""
    x, held = hooked(convolve(ctx, vision, ctx.tokens, vision.stem[0], None), leaf=leaf)
    order = ctx.tape.new((ctx.tokens // vision.merge,), "int64", "window index")
    x = index(ctx.tape, x, order, x.shape, "window order")
    return x, held + rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``merger``, its rows put back in order, and ``projector``."""
    norm, *matrices = vision.projector
    x = rms_norm_pieces(ctx.tape, x, ctx.parameter(norm.name, norm.shape))
    merged = merge(ctx, vision, x, tuple(matrices[:4]))
    del x
    order = ctx.tape.new(merged.shape[:1], "int64", "reverse index")
    ordered = index(ctx.tape, merged, order, merged.shape, "picture order")
    del merged
    return features(ctx, plain(ctx, ordered, matrices[4], bias=True))
