"""The attention of DeBERTa's first version: one matrix, whose parts have biases of their own, and a plain table.

Source: transformers 5.23 models/deberta/modeling_deberta.py (DisentangledSelfAttention, disentangled_att_bias).
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, add_bias, add_in_place, copy, dropout, scale, scale_in_place, shift
from memcheck.autograd.indexing import slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.shared import shared
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.disentangled import masked_scores, picked, places_of, repeated
from memcheck.models.types import Attention, Disentangled, ParameterTensor

Tensors = dict[str, ParameterTensor]


def attended(ctx: Context, a: Attention, d: Disentangled, x: Value) -> Value:
    """DisentangledSelfAttention.forward: whatever has a name there lives until it returns.

    Heads lie side by side in each row, so that torch.matmul copies all that it multiplies.
    """
    tape, b, s, heads = ctx.tape, ctx.batch, ctx.sequence, a.heads
    tensors: Tensors = {t.name.removeprefix("attention.self.").removesuffix(".weight"): t for t in a.tensors}
    rows, square = (b * heads * s, a.head_dim), (b * heads, s, s)
    joint = linear(tape, x, ctx.weights(tensors["in_proj"], False), "in_proj")
    del x
    q, k, v = tape.views(joint, rows, rows, rows)
    q, v = (_biased(ctx, tensors[f"{name}_bias"], part) for name, part in (("q", q), ("v", v)))
    q = scale(tape, q, "divided queries")
    scores = kernels.batched(tape, q, k, square, "attention scores", (True, True))
    biases = relative = None
    if d.rows:
        table = shared(tape, (d.rows, heads * a.head_dim), ctx.setting.params, wants=ctx.setting.trained, starts=False)
        relative = dropout(tape, table, d.dropout)
        biases = _biases(ctx, a, d, (q, k), relative, tensors)
    scores = shift(tape, scores, "add 0") if biases is None else add(tape, scores, biases, "add relative scores")
    mask = tape.new((b, 1, s, s), "bool", "attention mask")
    scores = masked_scores(tape, scores, tape.new((b, 1, s, s), "bool", "inverted attention mask"))
    weights = kernels.softmax(tape, scores, "fp32" if tape.autocast else None)
    weights = dropout(tape, weights, a.dropout)
    out = kernels.batched(tape, weights, v, (b * heads, s, a.head_dim), "attention output", (False, True))
    out = copy(tape, out, "contiguous")
    del mask, scores, biases, relative, weights, q, k, v, joint
    return out.view(ctx.tokens, heads * a.head_dim)


def _biased(ctx: Context, tensor: ParameterTensor, x: Value) -> Value:
    """``x + bias`` in the wider dtype of the two, which under autocast is the bias's."""
    tape, shape = ctx.tape, tensor.shape
    vector = tape.parameter(ctx.parameter(tensor.name, shape))
    if vector.dtype == x.dtype:
        return add_bias(tape, x, vector)
    wide, dtype, wants = shift(tape, x, "add", vector.dtype), vector.dtype, vector.origin is not None
    out = Value(wide.storage, wide.shape, wide.dtype)
    return operator(tape, out, (wide, vector), [PASSED, (shape, dtype, "sum") if wants else None])


def _biases(
    ctx: Context, a: Attention, d: Disentangled, words: tuple[Value, Value], relative: Value, tensors: Tensors
) -> Value | None:
    """``disentangled_att_bias``: [batch x heads, S, S]; its variables live until all scores are made."""
    tape, score, named = ctx.tape, None, list[object]()
    span = min(ctx.sequence, d.rows // 2)
    rows = slices(tape, relative, (2 * span, relative.shape[1]))[0]
    shape = (ctx.batch * a.heads, ctx.sequence, 2 * span)
    for kind, name, word in zip(("c2p", "p2c"), ("pos_proj", "pos_q_proj"), words, strict=True):
        if kind not in d.scores:
            continue
        made = linear(tape, rows, ctx.weights(tensors[name], kind == "p2c"), name)
        if kind == "p2c":
            made = scale_in_place(tape, made, "divided positions")
        wide = repeated(ctx, made)
        places = places_of(ctx, twice=kind == "p2c")
        found = picked(ctx, a, kernels.batched(tape, word, wide, shape, kind, (True, False)), places)
        del wide
        named += [made, places, found]
        score = shift(tape, found, "0 + score") if score is None else add_in_place(tape, score, found)
        del made, found
    del named, rows
    return score
