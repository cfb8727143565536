"""Softmax attention around the usual kernels: differences of two passes (DiffLlama), masks made from values (Doge),
floored scores (XGLM).

Sources: transformers 5.23 models/diffllama/modeling_diffllama.py, models/doge/modeling_doge.py,
models/xglm/modeling_xglm.py.
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, cat, copy, dropout, mul, scale, shift, subtract, unary
from memcheck.autograd.indexing import repeat_kv
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import fused_norm
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.transformers.attend import attend
from memcheck.frameworks.transformers.kernel_choice import copied_operands, kernel_of
from memcheck.models.types import Attention


def unusual_attention(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """Attention in an eager form of one family: differential, with a dynamic mask, with a mask of blocks,
    or floored.
    """
    if a.differential:
        return differential(ctx, a, q, k, v)
    if a.floored:
        return floored(ctx, a, q, k, v)
    return under_dynamic_mask(ctx, a, q, k, v) if a.dynamic_mask else under_block_mask(ctx, a, q, k, v)


def differential(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """DiffLlama: attention over either half of the values' heads, whose outputs stand side by side in each head; the
    second half of the heads is subtracted from the first with a learned weight, and the rest normed and scaled.
    """
    tape = ctx.tape
    b, kv_heads, s, d = v.shape
    halves = tape.views(v, *(((b, kv_heads // 2, s, d),) * 2))
    both = [_twice(tape, half, (b, kv_heads, s, d)) for half in halves]
    outs = [attend(ctx, a, q, k, values) for values in both]
    joined = cat(tape, tuple(outs), (b, s, a.heads, 2 * d), "cat both passes")
    half = (b, s, a.heads // 2, 2 * d)
    first, second = tape.views(joined, half, half)
    del joined
    weight = _lambda(ctx, a, first.dtype)  # of no dimension: it leaves the outputs' dtype as it is
    out = subtract(tape, first, mul(tape, second, weight, "lambda * second"))
    out = fused_norm(tape, out, None, None, "rmsnorm")
    out = scale(tape, out, "1 - lambda_init")
    del first, second, outs, both, halves, q, k, v
    return out


def _twice(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``v.repeat(1, 2, 1, 1)``: a copy; its gradient is summed over both."""
    return operator(tape, tape.value(shape, x.dtype, "repeat"), x, "sum")


def _lambda(ctx: Context, a: Attention, dtype: str) -> Value:
    """``exp(q1 . k1) - exp(q2 . k2) + init``: a number made of four vectors."""
    tape, found = ctx.tape, []
    names = [t for t in a.tensors if ".lambda_" in t.name]
    for first, second in (names[:2], names[2:]):
        one, two = (tape.parameter(ctx.parameter(t.name, t.shape)) for t in (first, second))
        total = _total(tape, mul(tape, one, two))
        found.append(cast(tape, unary(tape, total, "exp"), dtype))
    return subtract(tape, found[0], found[1])


def _total(tape: Tape, x: Value) -> Value:
    """``sum(dtype=fp32)``."""
    return operator(tape, tape.value((1,), "fp32", "sum"), x, "expand")


def floored(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """XGLM: one variable holds the scores, then each result. The probabilities stay alive with what dropout leaves of
    them.
    """
    tape, s = ctx.tape, ctx.setting
    shape = (q.shape[0], a.heads, q.shape[2], k.shape[2])
    weights = kernels.batched(tape, q, k, shape, "attention scores")
    weights = shift(tape, weights, "attention mask", s.params if tape.autocast else s.compute)
    weights = _larger(tape, weights)
    half = weights.dtype == "fp16"
    weights = kernels.softmax(tape, weights, "fp32" if tape.autocast or half else None)
    weights = cast(tape, weights, "fp16") if half else weights
    probabilities = dropout(tape, weights, a.dropout)
    out = kernels.batched(tape, probabilities, v, (*q.shape[:3], v.shape[-1]), "attention output")
    ctx.named += [weights, probabilities]
    return copy(tape, out, "reshape")


def _larger(tape: Tape, x: Value) -> Value:
    """``torch.max(x, number)``: keeps x; backward halves the gradient, where both are equal, and fills it where x is
    smaller (tools/autograd/derivatives.yaml, ``maximum``).
    """
    shape, dtype = x.shape, x.dtype
    out = tape.value(shape, dtype, "maximum")

    def run(grad: Storage) -> list[Storage | None]:
        equal, halved = tape.new(shape, "bool", "equal"), tape.new(shape, dtype, "halved gradient")
        chosen = tape.new(shape, dtype, "maximum backward")
        smaller = tape.new(shape, "bool", "smaller")
        del equal, halved, smaller  # temporaries of one expression
        return [chosen]

    return tape.record(out, (x,), run, saves=(x.storage,))


def under_dynamic_mask(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """Doge: the values of each key head score the keys, which are masked by causality and, beyond ``dynamic_mask``
    tokens, to the largest; the result is added to the scores, and takes a gradient.
    """
    tape = ctx.tape
    tensors = {t.name: t for t in a.tensors}
    projection = tensors["self_attn.dt_proj.weight"]
    rows = v.view(ctx.tokens, v.shape[1] * v.shape[3])
    step = linear(tape, rows, ctx.weights(projection, a.qkv_bias), projection.name)
    rate = tape.parameter(ctx.parameter("self_attn.A", tensors["self_attn.A"].shape))
    step = unary(tape, mul(tape, rate, unary(tape, step, "softplus")), "exp")
    mask = _dynamic_mask(ctx, a, step, v.shape[1])
    heads = q.shape[1]
    if v.shape[1] != heads:
        mask = repeat_kv(tape, mask, heads, copies=True)
        k, v = repeat_kv(tape, k, heads), repeat_kv(tape, v, heads)
    ctx.named.append(mask)  # `attn_mask`, a variable of the module's forward
    eager = kernel_of(ctx, a) == "eager"
    out = _eager(ctx, a, (q, k, v), mask) if eager else _efficient(ctx, (q, k, v), mask)
    del mask, rows, step, q, k, v
    return out


def under_block_mask(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """MiniMax M3's sparse layers: an indexer chooses blocks of keys, of which an additive mask of every head is made.

    No gradient reaches the indexer; what its graph saves dies when it returns.
    """
    tape, heads, s = ctx.tape, q.shape[1], ctx.sequence
    for tensor in (t for t in a.tensors if t.fixed):
        ctx.constant(tensor)
    dtype = q.dtype
    queries = tape.new((ctx.batch, s, a.block_heads * a.block_dim), "fp32", "index queries in fp32")
    scores = tape.new((ctx.batch, a.block_heads, s, s), "fp32", "index scores")
    masked = tape.new((ctx.batch, a.block_heads, s, s), "fp32", "masked index scores")
    del queries, scores, masked
    shape = (ctx.batch, heads, s, s)
    few = tape.new((ctx.batch, a.block_heads, s, s), "bool", "chosen keys")
    chosen, keep = tape.new(shape, "bool", "chosen keys of every head"), tape.new(shape, "bool", "kept keys")
    inverse = tape.new(shape, "bool", "masked keys")
    zeros = tape.new(shape, dtype, "zeros")
    mask = Value(tape.new(shape, dtype, "mask of every head"), shape, dtype)
    del few, chosen, keep, inverse, zeros
    if k.shape[1] != heads:
        k, v = repeat_kv(tape, k, heads), repeat_kv(tape, v, heads)
    if kernel_of(ctx, a) == "eager":
        return _eager(ctx, a, (q, k, v), mask)
    return _efficient(ctx, (q, k, v), mask)


def _dynamic_mask(ctx: Context, a: Attention, step: Value, heads: int) -> Value:
    """prepare_dynamic_mask: ``masked_fill`` of the expanded scores, again below the largest in long sequences."""
    tape, s = ctx.tape, ctx.sequence
    shape, once = (ctx.batch, heads, s, s), (ctx.batch, 1, s, s)
    # a boolean mask, expanded to every sequence, is made additive; eager attention's is so already
    additive = tape.new(once, ctx.setting.params, "additive mask") if kernel_of(ctx, a) != "eager" else None
    mask = _filled(tape, step, shape, once)
    if s > a.dynamic_mask:
        zeros = tape.new(shape, ctx.setting.params, "zeros_like")
        values = tape.new((ctx.batch, heads, s, a.dynamic_mask), mask.dtype, "topk values")
        indices = tape.new((ctx.batch, heads, s, a.dynamic_mask), "int64", "topk indices")
        del values
        active = tape.new(shape, ctx.setting.params, "scatter")
        del zeros
        mask = _filled(tape, mask, shape, shape)
        del indices, active
    del additive
    return mask


def _filled(tape: Tape, x: Value, shape: tuple[int, ...], masked: tuple[int, ...]) -> Value:
    """``masked_fill`` of ``x``, expanded to ``shape``: keeps the boolean mask."""
    chosen = tape.new(masked, "bool", "compare mask")
    out = tape.value(shape, x.dtype, "masked_fill")
    if shape == x.shape:
        return operator(tape, out, x, "masked_fill backward", saves=(chosen,))
    filled = (shape, x.dtype, "masked_fill backward")
    return operator(tape, out, x, "sum", saves=(chosen,), temporaries=[filled])


def _efficient(ctx: Context, heads: tuple[Value, Value, Value], mask: Value) -> Value:
    """The memory-efficient kernel with a bias that takes a gradient: it keeps q, k, v, the bias, output, logsumexp."""
    tape = ctx.tape
    q, k, v, bias = ((cast(tape, t, tape.autocast) if tape.autocast else t) for t in (*heads, mask))
    if ctx.sequence % MASK_ALIGNMENT:  # pad_bias
        bias = _padded(tape, bias, -(-ctx.sequence // MASK_ALIGNMENT) * MASK_ALIGNMENT)
    out = Value(tape.output("attention", q.shape, q.dtype, "efficient attention"), q.shape, q.dtype)
    lse = tape.output("attention", q.shape[:-1], "fp32", "efficient attention logsumexp")
    return operator(tape, out, (q, k, v, bias), "efficient attention backward", saves=(q, k, v, bias, out, lse))


def _padded(tape: Tape, x: Value, wide: int) -> Value:
    """Rows padded to ``wide``, of which the kernel is given a slice."""
    shape, dtype = (*x.shape[:-1], wide), x.dtype
    return operator(tape, tape.value(shape, dtype, "pad_bias"), x, "pad backward")


def _eager(ctx: Context, a: Attention, heads: tuple[Value, Value, Value], mask: Value) -> Value:
    """eager_attention_forward, whose mask takes a gradient."""
    tape = ctx.tape
    q, k, v = heads
    b, h, s, d = q.shape
    copied = copied_operands(ctx, a, h)
    scores = scale(tape, kernels.batched(tape, q, k, (b, h, s, s), "attention scores", copied[:2]))
    scores = add(tape, scores, mask, "attention mask")
    probabilities = kernels.softmax(tape, scores, "fp32")
    narrow = cast(tape, probabilities, q.dtype, "attention probabilities")
    del scores, probabilities
    narrow = dropout(tape, narrow, a.dropout)
    ctx.unused.append(narrow)
    out = kernels.batched(tape, narrow, v, (b, h, s, d), "attention output", (False, copied[2]))
    return copy(tape, out, "contiguous")
