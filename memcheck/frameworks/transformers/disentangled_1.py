"""The attention of DeBERTa's first version: one matrix, whose parts have biases of their own, and a plain table.

Source: transformers 5.23 models/deberta/modeling_deberta.py (DisentangledSelfAttention, disentangled_att_bias).
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    add,
    add_bias,
    add_in_place,
    copy,
    dropout,
    operator,
    scale,
    scale_in_place,
    shift,
    slices,
)
from memcheck.autograd.tensor import Value, shared
from memcheck.frameworks.transformers.disentangled import masked_scores, picked, places_of, repeated
from memcheck.models.types import Attention, Disentangled, ParameterTensor

Tensors = dict[str, ParameterTensor]


def attended(ctx: Context, attention: Attention, disentangled: Disentangled, x: Value) -> Value:
    """Replay DisentangledSelfAttention.forward of DeBERTa v1: [tokens, hidden] to [tokens, heads * head_dim].

    ``disentangled``: the table of relative positions. Every variable of the forward lives until it returns. q, k and v
    are strided views of one projection, so that torch.matmul copies its operands.
    """
    tape, batch = ctx.tape, ctx.batch
    sequence, heads = ctx.sequence, attention.heads
    tensors: Tensors = {t.name.removeprefix("attention.self.").removesuffix(".weight"): t for t in attention.tensors}
    head_shape, scores_shape = (batch * heads * sequence, attention.head_dim), (batch * heads, sequence, sequence)
    qkv = linear(tape, x, ctx.weights(tensors["in_proj"], bias=False), "in_proj")
    del x
    q, k, v = tape.views(qkv, head_shape, head_shape, head_shape)
    q, v = (_biased(ctx, tensors[f"{name}_bias"], part) for name, part in (("q", q), ("v", v)))
    q = scale(tape, q, "divided queries")
    scores = kernels.batched(tape, q, k, scores_shape, "attention scores", (True, True))
    biases = relative = None
    if disentangled.rows:
        table = shared(
            tape,
            (disentangled.rows, heads * attention.head_dim),
            ctx.setting.param_dtype,
            needs_grad=ctx.setting.trained,
            starts=False,
        )
        relative = dropout(tape, table, disentangled.dropout)
        biases = _biases(ctx, attention, disentangled, (q, k), relative, tensors)
    scores = shift(tape, scores, "add 0") if biases is None else add(tape, scores, biases, "add relative scores")
    mask = tape.new((batch, 1, sequence, sequence), "bool", "attention mask")
    scores = masked_scores(tape, scores, tape.new((batch, 1, sequence, sequence), "bool", "inverted attention mask"))
    weights = kernels.softmax(tape, scores, "fp32" if tape.autocast else None)
    weights = dropout(tape, weights, attention.dropout)
    out_shape = (batch * heads, sequence, attention.head_dim)
    out = kernels.batched(tape, weights, v, out_shape, "attention output", (False, True))
    out = copy(tape, out, "contiguous")
    del mask, scores, biases, relative, weights, q, k, v, qkv
    return out.view(ctx.tokens, heads * attention.head_dim)


def _biased(ctx: Context, tensor: ParameterTensor, x: Value) -> Value:
    """Compute ``x + bias`` in the wider dtype of the two, which under autocast is the bias's."""
    tape, shape = ctx.tape, tensor.shape
    vector = tape.parameter(ctx.parameter(tensor.name, shape))
    if vector.dtype == x.dtype:
        return add_bias(tape, x, vector)
    wide, dtype, wants = shift(tape, x, "add", vector.dtype), vector.dtype, vector.needs_grad
    out = Value(wide.storage, wide.shape, wide.dtype)
    return operator(tape, out, (wide, vector), [GRAD_UNCHANGED, (shape, dtype, "sum") if wants else None])


def _biases(
    ctx: Context,
    attention: Attention,
    disentangled: Disentangled,
    words: tuple[Value, Value],
    relative: Value,
    tensors: Tensors,
) -> Value | None:
    """Replay ``disentangled_att_bias``: scores of words against relative positions, [batch * heads, sequence,
    sequence].

    ``words``: q and k. ``relative``: the table of relative positions. Variables live until all scores exist.
    """
    tape, score, variables = ctx.tape, None, list[object]()
    span = min(ctx.sequence, disentangled.rows // 2)
    rows = slices(tape, relative, (2 * span, relative.shape[1]))[0]
    shape = (ctx.batch * attention.heads, ctx.sequence, 2 * span)
    for kind, name, word in zip(("c2p", "p2c"), ("pos_proj", "pos_q_proj"), words, strict=True):
        if kind not in disentangled.scores:
            continue
        position_heads = linear(tape, rows, ctx.weights(tensors[name], kind == "p2c"), name)
        if kind == "p2c":
            position_heads = scale_in_place(tape, position_heads, "divided positions")
        repeated_heads = repeated(ctx, position_heads)
        position_index = places_of(ctx, twice=kind == "p2c")
        picked_scores = picked(
            ctx, attention, kernels.batched(tape, word, repeated_heads, shape, kind, (True, False)), position_index
        )
        del repeated_heads
        variables += [position_heads, position_index, picked_scores]
        score = shift(tape, picked_scores, "0 + score") if score is None else add_in_place(tape, score, picked_scores)
        del position_heads, picked_scores
    del variables, rows
    return score
