"""InstructBLIP: BLIP-2's tower, and a Q-Former that reads each picture's text together with its learned rows.

modeling_instructblip.py of transformers 5.23.
"""

from __future__ import annotations

from functools import partial

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cat, dropout
from memcheck.autograd.indexing import slices
from memcheck.autograd.matrix import embedding
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.mlp import activation
from memcheck.frameworks.transformers.towers.blip2 import attended, learned_rows, read_rows, stem, summed
from memcheck.frameworks.transformers.towers.tiles import given_out, last_rows, layer_norm, plain
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision

__all__ = ("project", "stem")


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm``, ``qformer`` and ``language_projection``. All of their outputs are in the model's."""
    tape, reader = ctx.tape, vision.perceiver
    rows = last_rows(ctx, vision, x)
    del x
    if reader is None:
        return rows
    query, weight, bias, words, places, *others, last, _ = vision.projector
    pictures, width = max(1, ctx.setting.pictures), query.shape[2]
    y = learned_rows(ctx, query)
    y = cat(tape, (y, _words(ctx, reader, words, places)), (pictures * (reader.latents + reader.words), width))
    box = [dropout(tape, layer_norm(ctx, y, (weight, bias)), reader.dropout)]
    del y
    y = read_rows(ctx, others, box, rows, partial(_layer, ctx, reader))
    y = slices(tape, y, (pictures * reader.latents, width))[0]
    return given_out(ctx, plain(ctx, y, last, bias=True), joins=False)


def _words(ctx: Context, p: Perceiver, words: ParameterTensor, places: ParameterTensor) -> Value:
    """``word_embeddings`` and ``position_embeddings`` of the text, which all pictures' have in common."""
    tape, pictures = ctx.tape, max(1, ctx.setting.pictures)
    table = ctx.parameter(words.name.removesuffix(".weight"), words.shape)
    x = embedding(tape, table, (pictures * p.words,), table.dtype, "words of the Q-Former")
    where = ctx.parameter(places.name.removesuffix(".weight"), places.shape)
    position = embedding(tape, where, (p.words,), where.dtype, "places of the Q-Former")
    out = tape.value(x.shape, x.dtype, "add positions")
    shape, dtype = position.shape, position.dtype
    return tape.record(out, (x, position), lambda grad: [grad, tape.new(shape, dtype, "sum") if pictures > 1 else grad])


def _layer(ctx: Context, p: Perceiver, t: dict[str, ParameterTensor], x: Value, rows: Value) -> Value:
    """InstructBlipQFormerLayer: all rows see each other; a network for the learned ones, and one for the words."""
    tape, pictures, width = ctx.tape, max(1, ctx.setting.pictures), x.shape[1]
    x = attended(ctx, p, t, "attention.", x, x)
    learned, text = slices(tape, x, (pictures * p.latents, width), (pictures * p.words, width))
    if "crossattention.output.dense.weight" in t:
        learned = attended(ctx, p, t, "crossattention.", learned, rows)
    first = _network(ctx, p, t, "_query", learned)
    second = _network(ctx, p, t, "", text)
    return cat(tape, (first, second), (pictures * (p.latents + p.words), width))


def _network(ctx: Context, p: Perceiver, t: dict[str, ParameterTensor], kind: str, x: Value) -> Value:
    inner = activation(ctx.tape, plain(ctx, x, t[f"intermediate{kind}.dense.weight"], bias=True), p.activation)
    return summed(ctx, p, t, f"output{kind}.", inner, x)
