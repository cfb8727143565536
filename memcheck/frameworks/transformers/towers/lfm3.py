"""LFM3-VL: patches by one matrix, a norm, gated convolutions over each picture's grid (modeling_lfm3_vl.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cat, mul
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.norms import normalise
from memcheck.frameworks.transformers.towers.attention import rotated_and_attended
from memcheck.frameworks.transformers.towers.convolutions import convolution, laid_out
from memcheck.frameworks.transformers.towers.qwen import features, hooked, rotary_tables
from memcheck.frameworks.transformers.towers.tiles import layer_norm, two_matrices
from memcheck.models.vision import TowerAttention, Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embed``, whose output the hook is on, ``embedding_norm`` and the rotary tables."""
    matrix, norm = vision.stem
    pixels = Value(None, (ctx.tokens, vision.channels), ctx.setting.params)
    x, held = hooked(linear(ctx.tape, pixels, ctx.weights(matrix, False), matrix.name), leaf=leaf)
    x = rms_norm_pieces(ctx.tape, x, ctx.parameter(norm.name, norm.shape))
    return x, held + rotary_tables(ctx, vision)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``multi_modal_projector``: a norm of every patch, and two matrices for four of them."""
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    x = layer_norm(ctx, x, vision.projector[:2])
    x = x.view(x.shape[0] // vision.merge, x.shape[1] * vision.merge)
    return features(ctx, two_matrices(ctx, vision, x, vision.projector[2:]))


def grouped_attention(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """``Lfm3VlVisionAttention``: normed queries and keys, fewer heads of keys and values."""
    tape, rows, d, kv = ctx.tape, ctx.tokens, a.head_dim, a.kv_heads
    queries, keys, values = [t for t in a.tensors if t.linear][:3]
    q = linear(tape, x, ctx.weights(queries, a.bias), queries.name).view(rows, a.heads, d)
    q = normalise(ctx, a.query_norm, q, "self_attn.q_norm")
    k = linear(tape, x, ctx.weights(keys, a.bias), keys.name).view(rows, kv, d)
    k = normalise(ctx, a.key_norm, k, "self_attn.k_norm")
    v = linear(tape, x, ctx.weights(values, a.bias), values.name).view(rows, kv, d)
    del x
    return rotated_and_attended(ctx, a, q, k, v)


def grid_convolution(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """``Lfm3VlVisionShortConv``: pictures are convolved one after the other, and all at once here, with the same kept.

    The list of what was convolved, the last picture's rows and the product live until the module returns.
    """
    tape = ctx.tape
    first, kernel, last = a.tensors
    joint = linear(tape, x, ctx.weights(first, False), first.name)
    del x
    third = (ctx.tokens, joint.shape[-1] // 3)
    before, after, inner = tape.views(joint, third, third, third)
    gated = mul(tape, before, inner)
    frames = convolution(ctx, laid_out(ctx, tape.views(gated, gated.shape)[0]), kernel, ctx.tokens)
    parts = laid_out(ctx, frames)
    mixed = mul(tape, after, cat(tape, (parts,), third, "cat pictures"))
    result = linear(tape, mixed, ctx.weights(last, False), last.name)
    del joint, before, after, inner, gated, frames, parts, mixed
    return result
