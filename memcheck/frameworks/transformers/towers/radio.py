"""C-RADIO around Nemotron-H: patches multiplied by a matrix, a resized grid of positions, learned rows in front.

modeling_radio.py (RadioPatchEmbeddings, RadioModel._forward_packed) and modeling_nemotron_h_omni.py
(NemotronH_Omni_Reasoning_V3.get_image_features) of transformers 5.23.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, copy
from memcheck.autograd.indexing import index
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.transformers.towers.attention import attend, in_pictures, output_of, projections
from memcheck.frameworks.transformers.towers.qwen import features
from memcheck.frameworks.transformers.towers.tiles import (
    layer_norm,
    picked,
    shuffled,
    two_matrices,
    with_class,
)
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import TowerAttention, Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings`` of packed patches; no hook finds them."""
    weight, table, learned = vision.stem
    patches = _patches(ctx, vision)
    params, shape = ctx.setting.params, (patches, vision.channels)
    pixels = Value(None, shape, "fp32") if params == "fp32" else picked(ctx, vision, patches, params)
    x = linear(ctx.tape, pixels, ctx.weights(weight, False), weight.name)
    del pixels
    rows = add(ctx.tape, x, grid_positions(ctx, table, patches, x.dtype), "add positions")
    joined = with_class(ctx, rows, learned, ctx.tokens)
    del x
    return joined, []


def grid_positions(ctx: Context, table: ParameterTensor, rows: int, dtype: str) -> Value:
    """``interpolate_pos_encoding`` of every picture: the whole grid in fp32, resized by ``interpolate``, in the rows'
    dtype, repeated, put together. Each picture's gradient is one of the whole table.
    """
    tape, (places, width) = ctx.tape, table.shape[-2:]
    pictures = max(1, ctx.setting.pictures)
    each = -(-rows // pictures)
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    own, whole, learns = p.dtype, (places, width), p.requires_grad
    repeated = []
    for _ in range(pictures):
        grid = tape.new(whole, "fp32", "position grid in fp32") if own != "fp32" else None
        resized = tape.new((each, width), "fp32", "interpolate")
        del grid
        narrow = tape.new((each, width), dtype, "to") if dtype != "fp32" else resized
        del resized
        repeated.append(tape.new((each, width), dtype, "repeat"))
        del narrow
    out = tape.value((rows, width), dtype, "cat pictures")
    repeated.clear()

    def run(grad: Storage) -> list[Storage | None]:
        total = None
        for _ in range(pictures if learns else 0):
            wide = tape.new((each, width), "fp32", "to backward")
            found = tape.new(whole, "fp32", "interpolate backward")
            del wide
            narrow = tape.new(whole, own, "to backward") if own != "fp32" else found
            del found
            total = narrow if total is None or not tape.subclass else tape.new(table.shape, own, "add gradients")
            del narrow
        return [total]

    return tape.record(out, (tape.parameter(p),), run)


def packed_one(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """RadioAttention.forward: a matrix each for q, k and v of all rows. One picture alone is a plain sequence,
    and eager probabilities of several are laid out over all rows, in a variable of the layer.
    """
    q, k, v = projections(ctx, a, x)
    del x
    rows = ctx.tokens
    if ctx.setting.pictures < 2:
        return output_of(ctx, a, attend(ctx, q, k, v, 1, wide=a.softmax_fp32))
    if ctx.setting.attention == "eager":
        ctx.unused.append(ctx.tape.value((a.heads, rows, rows), q.dtype, "attention probabilities"))
    return in_pictures(ctx, a, q, k, v)


def _patches(ctx: Context, vision: Vision) -> int:
    return ctx.tokens - max(1, ctx.setting.pictures) * vision.classes


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """The patches' rows by a mask, pixels shuffled picture by picture, ``multi_modal_projector``."""
    tape, patches = ctx.tape, _patches(ctx, vision)
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    picked_rows = index(tape, x, tape.new((patches,), "int64", "rows of patches"), (patches, x.shape[1]))
    del x
    rows = copy(tape, shuffled(ctx, vision, layer_norm(ctx, picked_rows, vision.closing)), "cat pictures")
    norm, *matrices = vision.projector
    weight = ctx.parameter(norm.name.removesuffix(".weight"), norm.shape)
    normed = rms_norm_pieces(tape, rows, weight, weight_in_fp32=True)
    del picked_rows
    return features(ctx, two_matrices(ctx, vision, normed, tuple(matrices)))
