"""DeepSeek V4's layer and the ends of its model: streams that learned weights collapse, expand and mix.

Source: transformers 5.23 models/deepseek_v4/modeling_deepseek_v4.py (DeepseekV4HyperConnection, DeepseekV4HyperHead,
DeepseekV4DecoderLayer.forward, DeepseekV4Model.forward).
"""

from __future__ import annotations

from memcheck.autograd.attention import batched, softmax
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, convert_weight, mean_rows, mul, power, scale, shift, unary
from memcheck.autograd.matrix import product
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.frameworks.transformers.attention import attention
from memcheck.frameworks.transformers.layers import feed_forward
from memcheck.models.layer_inputs import HyperConnections
from memcheck.models.types import Attention, Block

EPSILON = "hc_eps"


def hyper_block(ctx: Context, block: Block, x: Value) -> Value:
    """Streams [tokens x streams, hidden] around attention and around experts; each result has a variable."""
    if not isinstance(block.mixer, Attention) or block.mlp is None:
        raise TypeError("streams around anything but softmax attention and experts")
    post, comb, collapsed = _connected(ctx, block, x, "attn_hc")
    normed = normalise(ctx, block.input_norm, collapsed)
    made = attention(ctx, block.mixer, normed, x.dtype)
    del normed
    ctx.named = []
    x = _expanded(ctx, (post, comb), made, x)
    # the tuple's variables are bound again when the module has returned
    second = _connected(ctx, block, x, "ffn_hc")
    post, comb, collapsed = second
    del second
    normed = normalise(ctx, block.mlp_norm, collapsed)
    out = feed_forward(ctx, block.mlp, normed)
    del normed
    result = _expanded(ctx, (post, comb), out, x)
    del made, out, post, comb, collapsed
    return result


def _connected(ctx: Context, block: Block, x: Value, module: str) -> tuple[Value, Value, Value]:
    """fp32 weights of what is added, [tokens, streams], and of the mixture, [tokens, streams, streams]; the input."""
    tape, streams, rows = ctx.tape, ctx.setting.streams, ctx.tokens
    fn, base, factors = (
        tape.parameter(ctx.parameter(t.name, t.shape)) for t in block.extra_tensors if t.name.startswith(module + ".")
    )
    flat = _weightless(tape, _flattened(tape, x, (rows, streams * ctx.hidden)))
    flat = product(tape, flat, convert_weight(tape, fn, "fp32"), module)
    each, square = (rows, streams), (rows, streams * streams)
    pre, post, comb = tape.views(flat, each, each, square)
    parts = [weighed(tape, part, factors, base) for part in (pre, post, comb)]
    pre = shift(tape, unary(tape, parts[0], "sigmoid"), EPSILON)
    post = scale(tape, unary(tape, parts[1], "sigmoid"))
    comb = shift(tape, softmax(tape, parts[2].view(rows * streams, streams)), EPSILON)
    del parts, flat
    rounds = block.own.rounds if isinstance(block.own, HyperConnections) else 0
    for _ in range(2 * (rounds or 1) - 1):
        comb = _over_sum(tape, comb, streams)
    return post, comb, collapse(ctx, x, pre)


def _flattened(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``x.flatten(2).float()``: adds what the norm sends back to what the streams were sent already."""
    if x.dtype == "fp32":  # no cast, and yet a node: that of the view
        return operator(tape, Value(x.storage, shape, x.dtype), x, PASSED)
    return cast(tape, x.view(*shape), "fp32")


def _weightless(tape: Tape, x: Value) -> Value:
    """DeepseekV4UnweightedRMSNorm: ``x * rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype)``."""
    inverse = unary(tape, mean_rows(tape, power(tape, cast(tape, x, "fp32"))), "rsqrt")
    return mul(tape, x, cast(tape, inverse, x.dtype))


def weighed(tape: Tape, x: Value, factors: Value, base: Value) -> Value:
    """``x * scale + base``: parts of two vectors, whose gradients are sums."""
    shape, dtype = x.shape, x.dtype
    out = tape.value(shape, promote(dtype, factors.dtype), "mul")
    both = tape.value(shape, promote(dtype, factors.dtype), "add")
    del out
    saves = (x if factors.origin is not None else None,)
    return operator(tape, both, (x, factors, base), ["mul backward", "sum", "sum"], saves=saves)


def _over_sum(tape: Tape, x: Value, streams: int) -> Value:
    """``x / (x.sum(dim, keepdim=True) + eps)``: keeps both."""
    rows = (x.numel // streams,)
    total = tape.new(rows, x.dtype, "sum")
    divisor = tape.new(rows, x.dtype, "sum + eps")
    del total
    out = tape.value(x.shape, x.dtype, "div")
    pieces = [(x.shape, x.dtype, "div backward")] * 3
    return operator(tape, out, x, "div backward", saves=(x, divisor), later=pieces)


def collapse(ctx: Context, x: Value, pre: Value) -> Value:
    """``(pre.unsqueeze(-1) * streams).sum(dim=2).to(streams.dtype)``: an fp32 product of all streams' size."""
    tape, streams = ctx.tape, ctx.setting.streams
    shape = (ctx.tokens, streams, ctx.hidden)
    weighted = mul(tape, pre.view(ctx.tokens, streams, 1), x.view(*shape))
    small, dtype = (ctx.tokens, ctx.hidden), weighted.dtype
    out = tape.value(small, dtype, "sum of streams")
    out = operator(tape, out, weighted, PASSED)
    del weighted
    return cast(tape, out, x.dtype)


def _expanded(ctx: Context, weights: tuple[Value, Value], made: Value, x: Value) -> Value:
    """``post * made + comb.T @ streams``, in the streams' dtype."""
    tape, streams, rows = ctx.tape, ctx.setting.streams, ctx.tokens
    shape = (rows, streams, ctx.hidden)
    post, comb = (cast(tape, w, x.dtype) for w in weights)
    added = outer(tape, post, made, shape)
    mixed = batched(tape, comb.view(rows, streams, streams), x.view(*shape), shape, "mixed streams")
    del post, comb
    return add(tape, added, mixed, "streams").view(*x.shape)


def outer(tape: Tape, post: Value, made: Value, shape: tuple[int, ...]) -> Value:
    """``post.unsqueeze(-1) * made.unsqueeze(-2)``: keeps both; either gradient is of all streams, then summed, and cast
    where autocast has made the layer's output narrower than the streams.
    """
    dtype, narrow = promote(post.dtype, made.dtype), made.dtype
    out = tape.value(shape, dtype, "expanded streams")
    small, rows = post.shape, made.shape
    np, nm = post.origin is not None, made.origin is not None
    saved = (post.storage if nm else None, made.storage if np else None)

    def run(grad: Storage) -> list[Storage | None]:
        first = tape.new(shape, dtype, "mul backward") if np else None
        second = tape.new(shape, dtype, "mul backward") if nm else None
        weights = tape.new(small, dtype, "sum") if np else None
        del first
        found = tape.new(rows, dtype, "sum") if nm else None
        del second
        if found is not None and narrow != dtype:
            found = tape.new(rows, narrow, "to backward")
        return [weights, found]

    return tape.record(out, (post, made), run, saves=saved)


def repeated_streams(ctx: Context, x: Value, streams: int) -> Value:
    """``inputs_embeds.unsqueeze(2).expand(...).contiguous()``."""
    out = ctx.tape.value((streams * x.shape[0], x.shape[1]), x.dtype, "streams")
    return operator(ctx.tape, out, x, "sum of streams")


def collapsed_streams(ctx: Context, x: Value) -> Value:
    """DeepseekV4HyperHead: one stream of the last layer's several, weighted by what a matrix makes of all."""
    tape, streams, rows = ctx.tape, ctx.setting.streams, ctx.tokens
    wide = streams * ctx.hidden
    fn, base, factor = (
        tape.parameter(ctx.parameter("hc_head." + name, shape))
        for name, shape in (("hc_fn", (streams, wide)), ("hc_base", (streams,)), ("hc_scale", (1,)))
    )
    flat = _weightless(tape, _flattened(tape, x, (rows, wide)))
    mixes = product(tape, flat, convert_weight(tape, fn, "fp32"), "hc_head")
    pre = shift(tape, unary(tape, weighed(tape, mixes, factor, base), "sigmoid"), EPSILON)
    out = collapse(ctx, x, pre)
    del flat, mixes, pre
    return out
