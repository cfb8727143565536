"""Muse Glimmer's tower: patches multiplied by a matrix, rows in the order of their windows, narrow rotary tables.

modeling_muse_glimmer.py of transformers 5.23: MuseGlimmerVisionModel.forward, MuseGlimmerModel.get_image_features.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, copy
from memcheck.autograd.indexing import index
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import activation
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.rotary import rotate_half
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.attention import in_pictures, projections
from memcheck.frameworks.transformers.towers.qwen import features
from memcheck.frameworks.transformers.towers.qwen3 import interpolated_positions
from memcheck.frameworks.transformers.towers.tiles import layer_norm, rows_of_pixels
from memcheck.models.vision import TowerAttention, Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embedder``, ``ln_pre``, and rows picked by ``window_index``; no hook finds the patches."""
    tape = ctx.tape
    weight, table, *norm = vision.stem
    x = linear(tape, rows_of_pixels(ctx, vision), ctx.weights(weight, False), weight.name)
    x = add(tape, x, cast(tape, interpolated_positions(ctx, table), x.dtype), "add positions")
    x = layer_norm(ctx, x, tuple(norm))
    order = tape.new((ctx.tokens,), "int64", "window index")
    x = index(tape, x, order, x.shape, "window order")
    shape = (ctx.tokens, vision.hidden // vision.heads)
    return x, [tape.value(shape, x.dtype, "rotary table") for _ in range(2)]


def packed_tables(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Queries and keys rotated on fp32 copies, by fp32 copies of the tables that each layer makes; the narrow ones have
    variables of the module until the rotation has returned (``apply_rotary_pos_emb_vision``).
    """
    tape = ctx.tape
    q, k, v = projections(ctx, a, x)
    del x
    narrow = q, k
    tables: tuple[Storage, ...] = ()
    q, k = (cast(tape, each, "fp32") for each in narrow)
    if ctx.setting.params != "fp32":
        tables = tuple(tape.new((ctx.tokens, a.head_dim), "fp32", "rotary table in fp32") for _ in range(2))
    turned = rotate_half(tape, q, "fp32", tables), rotate_half(tape, k, "fp32", tables)
    q = cast(tape, turned[0], narrow[0].dtype)
    k = cast(tape, turned[1], narrow[1].dtype)
    del narrow, turned, tables
    return in_pictures(ctx, a, q, k, v)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Rows in their pictures' order, ``ln_post``, ``pixel_shuffle``, the adapter, a matrix and a norm."""
    tape, shape = ctx.tape, x.shape
    x = index(tape, x, tape.new(shape[:1], "int64", "reverse index"), shape, "picture order")
    x = layer_norm(ctx, x, vision.closing)
    x = index(tape, x, tape.new(shape[:1], "int64", "shuffle index"), shape, "pixel shuffle")
    x = copy(tape, x, "pixel shuffle").view(shape[0] // vision.merge, shape[1] * vision.merge)
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    *adapter, last = vision.projector
    for tensor in adapter:
        x = activation(tape, linear(tape, x, ctx.weights(tensor, False), tensor.name), vision.activation)
    x = linear(tape, x, ctx.weights(last, False), last.name)
    return features(ctx, rms_norm_pieces(tape, x, None))
