"""Ovis 2: probabilities of visual words, by which the rows of a table of them are summed (modeling_ovis2.py)."""

from __future__ import annotations

from memcheck.autograd.attention import softmax
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.matrix import product
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.towers.qwen import hooked
from memcheck.frameworks.transformers.towers.tiles import convolve, given_out, layer_norm, plain, with_positions
from memcheck.models.vision import Vision


def stem(ctx: Context, vision: Vision, leaf: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, which norm the patches in front of their positions."""
    weight, bias, table, norm = vision.stem
    x = convolve(ctx, vision, ctx.tokens, weight, bias)
    x = rms_norm_pieces(ctx.tape, x, ctx.parameter(norm.name, norm.shape))
    x = with_positions(ctx, x, table)
    return hooked(x, leaf=leaf)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """The last norm, ``head_linear``, ``head_norm``, a softmax, and ``visual_embeddings_table``."""
    tape, norm = ctx.tape, vision.closing[0]
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape))
    head, *norms, table = vision.projector
    tokens = ctx.setting.image_tokens or x.shape[0] // vision.merge
    if vision.merge > 1:
        x = _padded(ctx, x, (tokens * vision.merge, x.shape[1]))
        x = copy(tape, x, "permute").view(tokens, vision.hidden * vision.merge)
    ctx.returned.append(Value(x.storage, x.shape, x.dtype))  # `last_hidden_state`
    logits = layer_norm(ctx, plain(ctx, x, head), tuple(norms))
    del x
    chances = softmax(tape, logits, "fp32" if tape.autocast else None)  # on autocast's fp32 list
    del logits
    words = _with_marks(ctx, chances, table.shape[0])
    del chances
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    weight = tape.parameter(p)
    matrix = Value(weight.storage, p.shape[::-1], weight.dtype, weight.origin)  # `visual_tokens @ weight`
    made = product(tape, words, matrix, table.name)
    del words
    return given_out(ctx, _beside_marks(ctx, made, weight), joins=False)


def _beside_marks(ctx: Context, x: Value, weight: Value) -> Value:
    """``visual_embeddings_table(visual_indicator)``: rows of the same table, written after the scatter into the places
    of the marks, so that the table's gradient is a sum of two.
    """
    tape, whole, dtype = ctx.tape, weight.shape, weight.dtype
    few = (8, whole[1])
    marks = operator(tape, tape.value(few, dtype, "marks"), weight, "embedding backward")
    ctx.returned.append(Value(marks.storage, marks.shape, marks.dtype))
    return operator(tape, Value(x.storage, x.shape, x.dtype), (x, marks), [PASSED, (few, dtype, "index_put backward")])


def _padded(ctx: Context, x: Value, shape: tuple[int, int]) -> Value:
    """``F.pad`` to a whole number of strides, which copies where nothing is added, too."""
    tape, dtype = ctx.tape, x.dtype
    return operator(tape, tape.value(shape, dtype, "pad"), x, "pad backward")


def _with_marks(ctx: Context, x: Value, words: int) -> Value:
    """``torch.cat`` with zeros for the words that mark where a picture begins and ends."""
    tape, whole, dtype = ctx.tape, x.shape, x.dtype
    zeros = tape.new((whole[0], words - whole[1]), dtype, "zeros")
    out = tape.value((whole[0], words), dtype, "cat marks")
    del zeros
    return operator(tape, out, x, "narrow")
