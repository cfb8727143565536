"""Idefics 3 and SmolVLM: pixels are shuffled, then one matrix (modeling_idefics3.py, Idefics3Connector.forward)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import (
    convolve,
    given_out,
    last_rows,
    picked,
    plain,
    shuffled,
    with_positions,
)
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, the module that the hook is on. Positions are looked up for every tile."""
    weight, bias, table = vision.stem
    pixels = picked(ctx, vision, ctx.tokens, ctx.setting.params)  # the real pictures of the batch
    x = convolve(ctx, vision, ctx.tokens, weight, bias, pixels=pixels)
    del pixels
    x = with_positions(ctx, x, table)
    return masked(ctx, x, leaf=leaf)


def masked(ctx: Context, x: Value, *, leaf: bool) -> tuple[Value, list[Value]]:
    """The rows, and the padding mask that every layer is given."""
    x, held = hooked(x, leaf=leaf)
    if ctx.setting.attention not in ("flash", "flex"):
        each = ctx.tokens // max(1, ctx.setting.pictures)
        shape = (ctx.setting.pictures, 1, each, each)  # an argument of every layer, which checkpoints keep
        masks = held if ctx.setting.recomputed else ctx.returned
        dtype = x.dtype if ctx.setting.attention == "eager" else "bool"  # masking_utils.py: added to the scores, or not
        masks.append(ctx.tape.value(shape, dtype, "padding mask"))
    return x, held


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm`` and ``connector``."""
    x = shuffled(ctx, vision, last_rows(ctx, vision, x))
    return given_out(ctx, plain(ctx, x, vision.projector[0]), joins=True)
