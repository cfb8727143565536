"""DeepSeek V4's layer and the ends of its model: streams that learned weights collapse, expand and mix.

Source: transformers 5.23 models/deepseek_v4/modeling_deepseek_v4.py (DeepseekV4HyperConnection, DeepseekV4HyperHead,
DeepseekV4DecoderLayer.forward, DeepseekV4Model.forward).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import batched, product, softmax
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    add,
    cast,
    convert_weight,
    mean_rows,
    mul,
    operator,
    power,
    scale,
    shift,
    unary,
)
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.frameworks.transformers.attention import attention
from memcheck.frameworks.transformers.moe import moe
from memcheck.models.types import Attention, Block, HyperConnections, Moe

EPSILON = "hc_eps"


def hyper_block(ctx: Context, block: Block, x: Value) -> Value:
    """Run DeepSeek V4's layer: learned weights collapse the streams before each half and expand its output.

    ``x``: [tokens * streams, hidden]; so is what is returned. Each result is a variable of the layer's forward. Source:
    modeling_deepseek_v4.py, DeepseekV4DecoderLayer.forward.
    """
    if not isinstance(block.mixer, Attention) or not isinstance(block.mlp, Moe):
        raise TypeError("streams around anything but softmax attention and experts")
    post, comb, collapsed = _connection_weights(ctx, block, x, "attn_hc")
    normed = normalise(ctx, block.input_norm, collapsed)
    attn_output = attention(ctx, block.mixer, normed, x.dtype)
    del normed
    ctx.attention_locals = []
    x = _expand(ctx, (post, comb), attn_output, x)
    # the tuple's variables are bound again when the module has returned
    mlp_weights = _connection_weights(ctx, block, x, "ffn_hc")
    post, comb, collapsed = mlp_weights
    del mlp_weights
    normed = normalise(ctx, block.mlp_norm, collapsed)
    mlp_output = moe(ctx, block.mlp, normed)
    del normed
    result = _expand(ctx, (post, comb), mlp_output, x)
    del attn_output, mlp_output, post, comb, collapsed
    return result


def _connection_weights(ctx: Context, block: Block, x: Value, module: str) -> tuple[Value, Value, Value]:
    """Compute the hyper-connection weights of attention or MLP in fp32, and the module's input.

    ``x``: all residual streams. ``module``: the name of the connection's parameters. Returns ``post`` [tokens,
    streams], ``comb`` [tokens * streams, streams], and the weighted sum of the streams [tokens, hidden]. ``comb`` is
    normalised over rows and columns alternately (Sinkhorn). Source: DeepseekV4HyperConnection.
    """
    tape, streams, rows = ctx.tape, ctx.setting.streams, ctx.tokens
    projection, base, factors = (
        tape.parameter(ctx.parameter(t.name, t.shape)) for t in block.extra_tensors if t.name.startswith(module + ".")
    )
    features = _unweighted_norm(tape, _flatten_fp32(tape, x, (rows, streams * ctx.hidden)))
    features = product(tape, features, convert_weight(tape, projection, "fp32"), module)
    per_stream, per_pair = (rows, streams), (rows, streams * streams)
    pre, post, comb = tape.views(features, per_stream, per_stream, per_pair)
    pre_scores, post_scores, comb_scores = [weighed(tape, part, factors, base) for part in (pre, post, comb)]
    pre = shift(tape, unary(tape, pre_scores, "sigmoid"), EPSILON)
    post = scale(tape, unary(tape, post_scores, "sigmoid"))
    comb = shift(tape, softmax(tape, comb_scores.view(rows * streams, streams)), EPSILON)
    del pre_scores, post_scores, comb_scores, features
    rounds = block.extension.rounds if isinstance(block.extension, HyperConnections) else 1
    divisions = 2 * max(1, rounds) - 1  # over rows and columns; the softmax is the first division over rows
    for _ in range(divisions):
        comb = _over_sum(tape, comb, streams)
    return post, comb, collapse(ctx, x, pre)


def _flatten_fp32(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """View the streams as [tokens, streams * hidden] in fp32: ``x.flatten(2).float()``.

    Its gradient is added to the gradient that the streams already have.
    """
    if x.dtype == "fp32":  # no cast, and yet a node: that of the view
        return operator(tape, Value(x.storage, shape, x.dtype), x, GRAD_UNCHANGED)
    return cast(tape, x.view(*shape), "fp32")


def _unweighted_norm(tape: Tape, x: Value) -> Value:
    """Run DeepseekV4UnweightedRMSNorm: ``x * rsqrt(x.float().square().mean(-1, keepdim=True) + eps).to(x.dtype)``."""
    rstd = unary(tape, mean_rows(tape, power(tape, cast(tape, x, "fp32"))), "rsqrt")
    return mul(tape, x, cast(tape, rstd, x.dtype))


def weighed(tape: Tape, x: Value, factors: Value, base: Value) -> Value:
    """Compute ``x * scale + base``, where scale and base are slices of two learned vectors.

    ``x``: [tokens, weights]. Gradients of the vectors are sums over tokens.
    """
    shape, dtype = x.shape, x.dtype
    multiplied = tape.value(shape, promote(dtype, factors.dtype), "mul")
    added = tape.value(shape, promote(dtype, factors.dtype), "add")
    del multiplied
    saves = (x if factors.needs_grad else None,)
    return operator(tape, added, (x, factors, base), ["mul backward", "sum", "sum"], saves=saves)


def _over_sum(tape: Tape, x: Value, streams: int) -> Value:
    """Divide by a sum: ``x / (x.sum(dim, keepdim=True) + eps)``. Autograd keeps x and the divisor."""
    rows = (x.numel // streams,)
    total = tape.new(rows, x.dtype, "sum")
    divisor = tape.new(rows, x.dtype, "sum + eps")
    del total
    out = tape.value(x.shape, x.dtype, "div")
    pieces = [(x.shape, x.dtype, "div backward")] * 3
    return operator(tape, out, x, "div backward", saves=(x, divisor), later=pieces)


def collapse(ctx: Context, x: Value, pre: Value) -> Value:
    """Collapse the streams with weights ``pre``: ``(pre.unsqueeze(-1) * streams).sum(dim=2).to(streams.dtype)``.

    ``x``: [tokens * streams, hidden]. ``pre``: [tokens, streams]. The product has all streams' size in fp32. Returns
    [tokens, hidden].
    """
    tape, streams = ctx.tape, ctx.setting.streams
    shape = (ctx.tokens, streams, ctx.hidden)
    weighted = mul(tape, pre.view(ctx.tokens, streams, 1), x.view(*shape))
    small, dtype = (ctx.tokens, ctx.hidden), weighted.dtype
    out = tape.value(small, dtype, "sum of streams")
    out = operator(tape, out, weighted, GRAD_UNCHANGED)
    del weighted
    return cast(tape, out, x.dtype)


def _expand(ctx: Context, weights: tuple[Value, Value], half_output: Value, x: Value) -> Value:
    """Expand a half's output to all streams, and mix them: ``post * output + comb.T @ streams`` in the streams' dtype.

    ``weights``: post and comb. ``half_output``: [tokens, hidden]. ``x``: [tokens * streams, hidden]; so is the result.
    """
    tape, streams, tokens = ctx.tape, ctx.setting.streams, ctx.tokens
    shape = (tokens, streams, ctx.hidden)
    post, comb = (cast(tape, w, x.dtype) for w in weights)
    added = outer(tape, post, half_output, shape)
    mixed = batched(tape, comb.view(tokens, streams, streams), x.view(*shape), shape, "mixed streams")
    del post, comb
    return add(tape, added, mixed, "streams").view(*x.shape)


def outer(tape: Tape, post: Value, half_output: Value, shape: tuple[int, ...]) -> Value:
    """Compute ``post.unsqueeze(-1) * output.unsqueeze(-2)``, [tokens, streams, hidden]. Autograd keeps both.

    Each gradient has all streams' size before it is summed. It is cast if autocast made the output narrower than the
    streams.
    """
    dtype, output_dtype = promote(post.dtype, half_output.dtype), half_output.dtype
    out = tape.value(shape, dtype, "expanded streams")
    post_shape, output_shape = post.shape, half_output.shape
    post_needs_grad, output_needs_grad = post.needs_grad, half_output.needs_grad
    saved = (post.storage if output_needs_grad else None, half_output.storage if post_needs_grad else None)

    def mul_backward(grad: Storage) -> list[Storage | None]:
        """Make both gradients with all streams' size, sum each to its factor's shape, and cast the output's."""
        full_post_grad = tape.new(shape, dtype, "mul backward") if post_needs_grad else None
        full_output_grad = tape.new(shape, dtype, "mul backward") if output_needs_grad else None
        post_grad = tape.new(post_shape, dtype, "sum") if post_needs_grad else None
        del full_post_grad
        output_grad = tape.new(output_shape, dtype, "sum") if output_needs_grad else None
        del full_output_grad
        if output_grad is not None and output_dtype != dtype:
            output_grad = tape.new(output_shape, output_dtype, "to backward")
        return [post_grad, output_grad]

    return tape.record(out, (post, half_output), mul_backward, saves=saved)


def repeated_streams(ctx: Context, x: Value, streams: int) -> Value:
    """Copy the embedding to all streams: ``inputs_embeds.unsqueeze(2).expand(...).contiguous()``."""
    out = ctx.tape.value((streams * x.shape[0], x.shape[1]), x.dtype, "streams")
    return operator(ctx.tape, out, x, "sum of streams")


def collapsed_streams(ctx: Context, x: Value) -> Value:
    """Merge the last layer's streams into one hidden state, weighted by a matrix of all of them (DeepseekV4HyperHead).

    ``x``: [tokens * streams, hidden]. Returns [tokens, hidden].
    """
    tape, streams, tokens = ctx.tape, ctx.setting.streams, ctx.tokens
    all_streams_width = streams * ctx.hidden
    fn, base, factor = (
        tape.parameter(ctx.parameter("hc_head." + name, shape))
        for name, shape in (("hc_fn", (streams, all_streams_width)), ("hc_base", (streams,)), ("hc_scale", (1,)))
    )
    features = _unweighted_norm(tape, _flatten_fp32(tape, x, (tokens, all_streams_width)))
    mixes = product(tape, features, convert_weight(tape, fn, "fp32"), "hc_head")
    pre = shift(tape, unary(tape, weighed(tape, mixes, factor, base), "sigmoid"), EPSILON)
    out = collapse(ctx, x, pre)
    del features, mixes, pre
    return out
