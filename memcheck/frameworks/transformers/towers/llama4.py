"""Llama 4: unfolded patches times a matrix, followed by a class token, a pixel-shuffle network (modeling_llama4.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.modules import activation
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import (
    given_out,
    layer_norm,
    patches_alone,
    plain,
    shuffled,
    with_class,
    with_positions,
)
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``patch_embedding``, class token, positions and ``layernorm_pre``. The table of rotations is a buffer."""
    tape = ctx.tape
    token, table, matrix, *norm = vision.stem
    patches = ctx.tokens - ctx.setting.pictures * vision.classes
    unfolded = tape.value((patches, vision.channels), ctx.setting.params, "unfold")
    x, held = hooked(plain(ctx, copy(tape, unfolded, "contiguous"), matrix), leaf=leaf)
    del unfolded
    x = with_positions(ctx, with_class(ctx, x, token, ctx.tokens), table, looked_up=False)
    return layer_norm(ctx, x, tuple(norm)), held


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``layernorm_post``, ``vision_adapter`` and ``multi_modal_projector``."""
    tape = ctx.tape
    first, second = vision.closing[2:]
    x = patches_alone(ctx, vision, layer_norm(ctx, x, vision.closing))
    x = activation(tape, plain(ctx, shuffled(ctx, vision, x), first), "gelu")
    x = activation(tape, plain(ctx, x, second), "gelu")
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    return given_out(ctx, plain(ctx, x, vision.projector[0]), joins=False)
