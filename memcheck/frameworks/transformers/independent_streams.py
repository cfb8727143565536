"""Hy 4's layer and the end of its model: streams that learned weights collapse and expand, and that nothing mixes.

Source: transformers 5.23 models/hy_v4/modeling_hy_v4.py (HYV4HyperConnection, HYV4HyperHead,
HYV4DecoderLayer.forward). Both modules switch autocast off.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cast, convert_weight, mean_rows, mul, power, scale, shift, unary
from memcheck.autograd.matrix import product
from memcheck.autograd.modules import normalise
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.hyper_connections import collapse, outer, weighed
from memcheck.frameworks.transformers.latent import latent_attention
from memcheck.frameworks.transformers.layers import feed_forward
from memcheck.models.types import Block, LatentAttention


def independent_block(ctx: Context, block: Block, x: Value) -> Value:
    """Streams [tokens x streams, hidden] around latent attention and a feed-forward network."""
    if not isinstance(block.mixer, LatentAttention) or block.mlp is None:
        return x
    stream = x.dtype
    post, hidden = _connected(ctx, block, x, "attn_hc")
    hidden = normalise(ctx, block.input_norm, hidden)
    hidden = latent_attention(ctx, block.mixer, hidden, stream)
    x = _expanded(ctx, post, hidden, x)
    post, hidden = _connected(ctx, block, x, "ffn_hc")
    hidden = normalise(ctx, block.mlp_norm, hidden)
    hidden = feed_forward(ctx, block.mlp, hidden)
    return _expanded(ctx, post, hidden, x)


def independent_head(ctx: Context, x: Value) -> Value:
    """HYV4HyperHead: one stream of the last layer's several."""
    tape, streams = ctx.tape, ctx.setting.streams
    wide = streams * ctx.hidden
    fn, base, factor = (
        tape.parameter(ctx.parameter("hc_head." + name, shape))
        for name, shape in (("hc_fn", (streams, wide)), ("hc_base", (streams,)), ("hc_scale", (1,)))
    )
    autocast, tape.autocast = tape.autocast, None
    flat, mixes = _mixes(ctx, x, fn)
    pre = shift(tape, unary(tape, weighed(tape, mixes, factor, base), "sigmoid"), "hc_eps")
    out = collapse(ctx, x, pre)
    del flat, mixes, pre
    tape.autocast = autocast
    return out


def _connected(ctx: Context, block: Block, x: Value, module: str) -> tuple[Value, Value]:
    """fp32 weights of what is added to each stream, [tokens, streams], and the module's input."""
    tape, rows, streams = ctx.tape, ctx.tokens, ctx.setting.streams
    fn, base, factors = (
        tape.parameter(ctx.parameter(t.name, t.shape)) for t in block.extra_tensors if t.name.startswith(module + ".")
    )
    autocast, tape.autocast = tape.autocast, None
    flat, mixes = _mixes(ctx, x, fn)
    pre, post = tape.views(mixes, (rows, streams), (rows, streams))
    del mixes
    pre = shift(tape, unary(tape, weighed(tape, pre, factors, base), "sigmoid"), "hc_eps")
    post = scale(tape, unary(tape, weighed(tape, post, factors, base), "sigmoid"), "hc_magnitude")
    post = shift(tape, post, "hc_eps")
    out = collapse(ctx, x, pre)
    del flat, pre
    tape.autocast = autocast
    return post, out


def _mixes(ctx: Context, x: Value, fn: Value) -> tuple[Value, Value]:
    """``F.linear(flat, fn.float()) * rsqrt(flat.square().mean(-1) + eps)``, and ``flat``: all streams in fp32."""
    tape = ctx.tape
    flat = cast(tape, x.view(ctx.tokens, ctx.setting.streams * ctx.hidden), "fp32")
    made = product(tape, flat, convert_weight(tape, fn, "fp32"), "hyper connection")
    inverse = unary(tape, mean_rows(tape, power(tape, flat)), "rsqrt")
    return flat, mul(tape, made, inverse)


def _expanded(ctx: Context, post: Value, made: Value, x: Value) -> Value:
    """``(post.unsqueeze(-1) * made.float().unsqueeze(-2) + streams.float()).to(dtype)``."""
    tape = ctx.tape
    shape = (ctx.tokens, ctx.setting.streams, ctx.hidden)
    added = outer(tape, post, cast(tape, made, "fp32"), shape)
    both = add(tape, added, cast(tape, x.view(*shape), "fp32"), "streams")
    del added
    return cast(tape, both, x.dtype).view(*x.shape)
