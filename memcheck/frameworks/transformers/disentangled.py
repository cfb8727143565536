"""DeBERTa's attention: words and relative positions score each other, in eager code of its own.

Source: transformers 5.23 models/deberta_v2/modeling_deberta_v2.py (DisentangledSelfAttention, DebertaV2Encoder).
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    add,
    add_in_place,
    copy,
    dropout,
    gather_last,
    head_view,
    operator,
    scale,
    shift,
)
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value, shared
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, Disentangled
from memcheck.record import Record


def masked_rows(ctx: Context, x: Value) -> Value:
    """Multiply the embeddings by the padding mask, ``embeddings * mask.to(embeddings.dtype)``; the mask is kept."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    mask = tape.new((ctx.tokens,), dtype, "mask of padding")
    out = tape.value(shape, dtype, "masked embeddings")
    return operator(tape, out, x, "masked embeddings backward", saves=(mask,))


def with_relative_rows(ctx: Context, disentangled: Disentangled, x: Value, trained: bool) -> Value:
    """Replay ``get_rel_embedding``: norm the table of relative positions, [rows, hidden], once for all layers.

    Returns ``x`` unchanged. The bytes that layers hold of the table are counted with the masks.
    """
    setting, tape = ctx.setting, ctx.tape
    table = ctx.register(
        Parameter(
            "rel_embeddings",
            (disentangled.rows, setting.hidden),
            setting.param_dtype,
            trained,
            has_grad=setting.has_grad,
        )
    )
    normed = normalise(ctx, disentangled.norm, tape.parameter(table))
    return operator(tape, Value(x.storage, x.shape, x.dtype), (x, normed), [GRAD_UNCHANGED, "sum of layers' gradients"])


def disentangled_attention(ctx: Context, attention: Attention, disentangled: Disentangled, x: Value) -> Value:
    """Run DeBERTa's attention module and its output layer. ``x``: [tokens, hidden]; so is the result."""
    from memcheck.frameworks.transformers import disentangled_1

    is_version_1 = attention.tensors[0].name.endswith("in_proj.weight")
    run_attention = disentangled_1.attended if is_version_1 else _attended
    output_matrix = linear_tensors(attention.tensors)[-1]
    return linear(
        ctx.tape,
        run_attention(ctx, attention, disentangled, x),
        ctx.weights(output_matrix, attention.out_bias),
        output_matrix.name,
    )


def _attended(ctx: Context, attention: Attention, disentangled: Disentangled, x: Value) -> Value:
    """Replay DisentangledSelfAttention.forward of DeBERTa v2: [tokens, hidden] to [tokens, heads * head_dim].

    ``disentangled``: the table of relative positions, and which scores it takes part in. Scores are [batch * heads,
    sequence, sequence]. Every variable of the forward lives until it returns.
    """
    tape = ctx.tape
    matrices = {
        t.name.split(".")[-2]: ctx.weights(t, attention.qkv_bias) for t in linear_tensors(attention.tensors)[:-1]
    }
    b, heads, sequence = ctx.batch, attention.heads, ctx.sequence
    scores_shape = (b * heads, sequence, sequence)
    q, k, v = (_heads(ctx, attention, matrices[name], x) for name in ("query_proj", "key_proj", "value_proj"))
    keys = scale(tape, k, "scaled keys")
    scores = kernels.batched(tape, q, keys, scores_shape, "attention scores")
    del keys
    biases = relative = None
    if disentangled.rows:
        table = shared(
            tape,
            (disentangled.rows, x.shape[-1]),
            ctx.setting.param_dtype,
            needs_grad=ctx.setting.trained,
            starts=False,
        )
        relative = dropout(tape, table, disentangled.dropout)
        biases = _biases(ctx, attention, disentangled, (q, k), relative, matrices)
    if biases is not None:
        scores = add(tape, scores, biases, "add relative scores")
    mask = tape.new((b, 1, sequence, sequence), "bool", "attention mask")
    scores = masked_scores(tape, scores, tape.new((b, 1, sequence, sequence), "bool", "inverted attention mask"))
    weights = kernels.softmax(tape, scores, "fp32" if tape.autocast else None)
    weights = dropout(tape, weights, attention.dropout)
    out = kernels.batched(tape, weights, v, (b * heads, sequence, attention.head_dim), "attention output")
    out = copy(tape, out, "contiguous")
    del mask, scores, biases, relative, weights, q, k, v
    return out.view(ctx.tokens, heads * attention.head_dim)


def _heads(ctx: Context, attention: Attention, weights: Weights, x: Value) -> Value:
    """Project to heads with ``transpose_for_scores``, which copies; the gradient of its view is copied, too."""
    projected = linear(ctx.tape, x, weights, weights.weight.name)
    shape = (projected.numel // attention.head_dim, attention.head_dim)
    return copy(ctx.tape, head_view(ctx.tape, projected, shape), "contiguous")


class PositionScores(Record):
    """One kind of scores of tokens against relative positions."""

    kind: str
    """``c2p``: content to position. ``p2c``: position to content."""
    words: Value
    """The queries (``c2p``) or the keys of the tokens."""
    projection: str
    """Name of the matrix that projects the table of relative positions."""


def _biases(
    ctx: Context,
    attention: Attention,
    disentangled: Disentangled,
    words: tuple[Value, Value],
    table: Value,
    matrices: dict[str, Weights],
) -> Value | None:
    """Replay ``disentangled_attention_bias``: scores of tokens against relative positions, [batch * heads, sequence,
    sequence].

    ``words``: q and k of the tokens. ``table``: the normed rows of relative positions. ``matrices``: of the module, by
    name. Variables live until all scores exist.
    """
    tape, (q, k), prefix = ctx.tape, words, "" if disentangled.shared else "pos_"
    kinds = [
        PositionScores("c2p", q, prefix + "key_proj"),
        PositionScores("p2c", k, prefix + "query_proj"),
    ]
    used = [each for each in kinds if each.kind in disentangled.scores]
    # shared projections are both computed, that of the query first; others only where their score is used
    projected = reversed(kinds) if disentangled.shared else used
    position_heads = {
        each.kind: repeated(ctx, _heads(ctx, attention, matrices[each.projection], table)) for each in projected
    }
    variables: list[object] = []
    total = None
    for each in used:
        position_index = places_of(ctx, twice=each.kind == "p2c")
        products_shape = _scored(ctx, attention, disentangled)
        scores = picked(
            ctx,
            attention,
            kernels.batched(tape, each.words, position_heads[each.kind], products_shape, each.kind),
            position_index,
        )
        variables += [position_index, scores]
        scaled_scores = scale(tape, scores, "divided")
        total = shift(tape, scaled_scores, "0 + score") if total is None else add_in_place(tape, total, scaled_scores)
        del scores, scaled_scores
    return total


def _scored(ctx: Context, attention: Attention, disentangled: Disentangled) -> tuple[int, ...]:
    return ctx.batch * attention.heads, ctx.sequence, disentangled.rows


def repeated(ctx: Context, x: Value) -> Value:
    """Replay ``repeat(batch, 1, 1)``, a copy; its gradient is summed over sequences."""
    tape, small, dtype = ctx.tape, x.shape, x.dtype
    return operator(tape, tape.value((ctx.batch * small[0], small[1]), dtype, "repeat"), x, "sum")


def places_of(ctx: Context, *, twice: bool) -> Storage:
    """Replay ``clamp(relative_pos + span, 0, ...)``: int64 indices of every pair of tokens, [sequence, sequence].

    ``twice``: the positions are negated first, as for keys.
    """
    tape, pairs = ctx.tape, (ctx.sequence, ctx.sequence)
    negative = tape.new(pairs, "int64", "negated positions") if twice else None
    shifted = tape.new(pairs, "int64", "moved positions")
    del negative
    clamped = tape.new(pairs, "int64", "clamped positions")
    del shifted
    return clamped


def picked(ctx: Context, attention: Attention, x: Value, indices: Storage) -> Value:
    """Replay ``gather`` along the last dimension, which keeps input and index; its gradient is scattered into zeros."""
    return gather_last(ctx.tape, x, indices, (ctx.batch * attention.heads, ctx.sequence, ctx.sequence))


def masked_scores(tape: Tape, x: Value, mask: Storage) -> Value:
    """Replay ``masked_fill`` of the scores, which keeps the mask."""
    return operator(tape, tape.value(x.shape, x.dtype, "masked_fill"), x, "masked_fill backward", saves=(mask,))
