"""Janus: matrices after SigLIP's rows, with an activation between each and the next (modeling_janus.py)."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.mlp import activation
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import convolve, given_out, last_rows, plain, with_positions
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, the module that the hook is on."""
    weight, bias, table = vision.stem
    x = with_positions(ctx, convolve(ctx, vision, ctx.tokens, weight, bias), table)
    return hooked(x, leaf=leaf)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm`` and ``aligner``."""
    x = last_rows(ctx, vision, x)
    first, *others = (t for t in vision.projector if t.linear)
    x = plain(ctx, x, first, bias=True)
    for tensor in others:
        x = plain(ctx, activation(ctx.tape, x, vision.activation), tensor, bias=True)
    return given_out(ctx, x, joins=False)
