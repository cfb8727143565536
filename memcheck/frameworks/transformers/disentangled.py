"""DeBERTa's attention: words and relative positions score each other, in eager code of its own.

Source: transformers 5.23 models/deberta_v2/modeling_deberta_v2.py (DisentangledSelfAttention, DebertaV2Encoder).
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, add_in_place, copy, dropout, scale, shift
from memcheck.autograd.indexing import gather_last, head_view
from memcheck.autograd.matrix import Weights, linear
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.shared import shared
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, Disentangled


def masked_rows(ctx: Context, x: Value) -> Value:
    """``embeddings * mask.to(embeddings.dtype)``: keeps the mask."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    mask = tape.new((ctx.tokens,), dtype, "mask of padding")
    out = tape.value(shape, dtype, "masked embeddings")
    return operator(tape, out, x, "masked embeddings backward", saves=(mask,))


def with_relative_rows(ctx: Context, d: Disentangled, x: Value, trained: bool) -> Value:
    """``get_rel_embedding``: the table, normed once for all layers. What these hold of it is counted with the masks."""
    s, tape = ctx.setting, ctx.tape
    table = ctx.register(Parameter("rel_embeddings", (d.rows, s.hidden), s.params, trained, has_grad=s.has_grad))
    normed = normalise(ctx, d.norm, tape.parameter(table))
    return operator(tape, Value(x.storage, x.shape, x.dtype), (x, normed), [PASSED, "sum of layers' gradients"])


def disentangled_attention(ctx: Context, a: Attention, d: Disentangled, x: Value) -> Value:
    """One attention module, with the layer after it."""
    last = linear_tensors(a.tensors)[-1]
    attended = _attended
    if a.tensors[0].name.endswith("in_proj.weight"):
        from memcheck.frameworks.transformers.disentangled_1 import attended
    return linear(ctx.tape, attended(ctx, a, d, x), ctx.weights(last, a.out_bias), last.name)


def _attended(ctx: Context, a: Attention, d: Disentangled, x: Value) -> Value:
    """DisentangledSelfAttention.forward: whatever has a name there lives until it returns."""
    tape = ctx.tape
    matrices = {t.name.split(".")[-2]: ctx.weights(t, a.qkv_bias) for t in linear_tensors(a.tensors)[:-1]}
    b, heads, s = ctx.batch, a.heads, ctx.sequence
    square = (b * heads, s, s)
    q, k, v = (_heads(ctx, a, matrices[name], x) for name in ("query_proj", "key_proj", "value_proj"))
    keys = scale(tape, k, "scaled keys")
    scores = kernels.batched(tape, q, keys, square, "attention scores")
    del keys
    biases = relative = None
    if d.rows:
        rows = shared(tape, (d.rows, x.shape[-1]), ctx.setting.params, wants=ctx.setting.trained, starts=False)
        relative = dropout(tape, rows, d.dropout)
        biases = _biases(ctx, a, d, (q, k), relative, matrices)
    if biases is not None:
        scores = add(tape, scores, biases, "add relative scores")
    mask = tape.new((b, 1, s, s), "bool", "attention mask")
    scores = masked_scores(tape, scores, tape.new((b, 1, s, s), "bool", "inverted attention mask"))
    weights = kernels.softmax(tape, scores, "fp32" if tape.autocast else None)
    weights = dropout(tape, weights, a.dropout)
    out = kernels.batched(tape, weights, v, (b * heads, s, a.head_dim), "attention output")
    out = copy(tape, out, "contiguous")
    del mask, scores, biases, relative, weights, q, k, v
    return out.view(ctx.tokens, heads * a.head_dim)


def _heads(ctx: Context, a: Attention, weights: Weights, x: Value) -> Value:
    """``transpose_for_scores``: a copy, [rows of each head]; the gradient of its view is copied back."""
    made = linear(ctx.tape, x, weights, weights.weight.name)
    shape = (made.numel // a.head_dim, a.head_dim)
    return copy(ctx.tape, head_view(ctx.tape, made, shape), "contiguous")


def _biases(
    ctx: Context,
    a: Attention,
    d: Disentangled,
    words: tuple[Value, Value],
    rows: Value,
    matrices: dict[str, Weights],
) -> Value | None:
    """``disentangled_attention_bias``: [batch x heads, S, S]; its variables live until all scores are made."""
    tape, score = ctx.tape, None
    named: list[object] = []
    names = ("key_proj", "query_proj") if d.shared else ("pos_key_proj", "pos_query_proj")
    used = [
        (kind, name, word)
        for kind, name, word in zip(("c2p", "p2c"), names, words, strict=True)
        if d.shared or kind in d.scores
    ]
    made = {
        kind: repeated(ctx, _heads(ctx, a, matrices[name], rows))
        for kind, name, _ in (reversed(used) if d.shared else used)
    }
    for kind, _, word in used:
        if kind not in d.scores:
            continue
        places = places_of(ctx, twice=kind == "p2c")
        named.append(places)
        found = picked(ctx, a, kernels.batched(tape, word, made[kind], _scored(ctx, a, d), kind), places)
        named.append(found)
        divided = scale(tape, found, "divided")
        score = shift(tape, divided, "0 + score") if score is None else add_in_place(tape, score, divided)
        del found, divided
    del named, made, words, rows
    return score


def _scored(ctx: Context, a: Attention, d: Disentangled) -> tuple[int, ...]:
    return ctx.batch * a.heads, ctx.sequence, d.rows


def repeated(ctx: Context, x: Value) -> Value:
    """``repeat(batch, 1, 1)``: a copy; its gradient is summed over sequences."""
    tape, small, dtype = ctx.tape, x.shape, x.dtype
    return operator(tape, tape.value((ctx.batch * small[0], small[1]), dtype, "repeat"), x, "sum")


def places_of(ctx: Context, *, twice: bool) -> Storage:
    """``clamp(relative_pos + span, 0, ...)``, negated first for keys: int64, of every pair of tokens."""
    tape, pairs = ctx.tape, (ctx.sequence, ctx.sequence)
    negative = tape.new(pairs, "int64", "negated positions") if twice else None
    moved = tape.new(pairs, "int64", "moved positions")
    del negative
    places = tape.new(pairs, "int64", "clamped positions")
    del moved
    return places


def picked(ctx: Context, a: Attention, x: Value, places: Storage) -> Value:
    """``gather`` along the last dimension: keeps what it reads and where; the gradient is scattered into zeros."""
    return gather_last(ctx.tape, x, places, (ctx.batch * a.heads, ctx.sequence, ctx.sequence))


def masked_scores(tape: Tape, x: Value, mask: Storage) -> Value:
    """``masked_fill``: keeps the mask."""
    return operator(tape, tape.value(x.shape, x.dtype, "masked_fill"), x, "masked_fill backward", saves=(mask,))
