"""BLIP-2: a class token, and a Q-Former, whose layers are recomputed by themselves (modeling_blip_2.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from memcheck.autograd import attention as kernels
from memcheck.autograd.checkpoint import checkpoint
from memcheck.autograd.context import Context
from memcheck.autograd.eager import eager
from memcheck.autograd.elementwise import add, cast, copy, dropout
from memcheck.autograd.indexing import slices
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.mlp import activation
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import (
    convolve,
    given_out,
    last_rows,
    layer_norm,
    plain,
    with_class,
    with_positions,
)
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision

Layer = Callable[[dict[str, ParameterTensor], Value, Value], Value]
"""Runs a layer on its tensors, its input and the tower's rows; gives its output."""


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, the module that the hook is on."""
    token, weight, bias, table = vision.stem
    patches = ctx.tokens - ctx.setting.pictures * vision.classes
    x = with_class(ctx, convolve(ctx, vision, patches, weight, bias), token, ctx.tokens)
    return hooked(with_positions(ctx, x, table, looked_up=False), leaf=leaf)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, ``qformer`` and ``language_projection``. All of their outputs are in the model's."""
    tape, reader = ctx.tape, vision.perceiver
    rows = last_rows(ctx, vision, x)
    del x
    if reader is None:
        return rows
    query, weight, bias, *others, last, _ = vision.projector
    box = [dropout(tape, layer_norm(ctx, learned_rows(ctx, query), (weight, bias)), reader.dropout)]
    y = read_rows(ctx, others, box, rows, partial(_layer, ctx, reader))
    return given_out(ctx, plain(ctx, y, last, bias=True), joins=False)


def learned_rows(ctx: Context, query: ParameterTensor) -> Value:
    """``query_tokens`` of every picture, expanded without memory."""
    tape, p = ctx.tape, ctx.parameter(query.name, query.shape)
    shape, dtype, learns = query.shape, p.dtype, p.requires_grad
    many = (max(1, ctx.setting.pictures) * shape[1], shape[2])
    y = Value(tape.new((0,), dtype, "query tokens"), many, dtype)
    return tape.record(y, (tape.parameter(p),), lambda grad: [tape.new(shape, dtype, "sum") if learns else None])


def read_rows(ctx: Context, tensors: list[ParameterTensor], box: list[Value], rows: Value, layer: Layer) -> Value:
    """Learned rows through the Q-Former's layers, which read the tower's; each is a checkpoint of its own.

    ``box`` holds the learned rows alone, and is emptied.
    """
    y = box.pop()
    for own in _layers(tensors):

        def forward(value: Value, own: dict[str, ParameterTensor] = own) -> Value:
            return layer(own, value, rows)

        y = checkpoint(ctx.tape, forward, y) if ctx.setting.recomputed else forward(y)
    ctx.kept += [Value(each.storage, each.shape, each.dtype) for each in (rows, y)]  # both are in the model's output
    return y


def _layers(tensors: list[ParameterTensor]) -> list[dict[str, ParameterTensor]]:
    """The tensors of each layer by their path inside it."""
    found: dict[str, dict[str, ParameterTensor]] = {}
    for t in tensors:
        number, _, name = t.name.removeprefix("qformer.encoder.layer.").partition(".")
        found.setdefault(number, {})[name] = t
    return list(found.values())


def _layer(ctx: Context, p: Perceiver, t: dict[str, ParameterTensor], x: Value, rows: Value) -> Value:
    """Blip2QFormerLayer: attention, perhaps attention to the tower's rows, a network; a norm after each sum."""
    x = attended(ctx, p, t, "attention.", x, x)
    x = slices(ctx.tape, x, x.shape)[0]  # `attention_output[:, :query_length]`
    if "crossattention.output.dense.weight" in t:
        x = attended(ctx, p, t, "crossattention.", x, rows)
    inner = activation(ctx.tape, plain(ctx, x, t["intermediate_query.dense.weight"], bias=True), p.activation)
    return summed(ctx, p, t, "output_query.", inner, x)


def attended(ctx: Context, p: Perceiver, t: dict[str, ParameterTensor], at: str, x: Value, read: Value) -> Value:
    """Attention of a Q-Former's rows to those that are read, and the residual sum after it."""
    tape, n = ctx.tape, max(1, ctx.setting.pictures)
    q = plain(ctx, x, t[f"{at}attention.query.weight"], bias=True)
    k = plain(ctx, read, t[f"{at}attention.key.weight"], bias=True)
    v = plain(ctx, read, t[f"{at}attention.value.weight"], bias=True)
    shape = q.shape
    if tape.autocast:
        q, k, v = (cast(tape, each, tape.autocast) for each in (q, k, v))
    q, k, v = (each.view(n, p.heads, each.shape[0] // n, p.head_dim) for each in (q, k, v))
    if ctx.setting.attention == "eager":
        out = copy(tape, eager(tape, q, k, v), "contiguous")
    else:
        out = kernels.flash(tape, q, k, v, p.head_dim)
    del q, k, v
    return summed(ctx, p, t, f"{at}output.", out.view(*shape), x)


def summed(ctx: Context, p: Perceiver, t: dict[str, ParameterTensor], at: str, inner: Value, x: Value) -> Value:
    """``LayerNorm(dropout(dense(inner)) + x)``."""
    made = dropout(ctx.tape, plain(ctx, inner, t[f"{at}dense.weight"], bias=True), p.dropout)
    del inner
    total = add(ctx.tape, made, x, "residual")
    del made, x
    return layer_norm(ctx, total, (t[f"{at}LayerNorm.weight"], t[f"{at}LayerNorm.bias"]))
