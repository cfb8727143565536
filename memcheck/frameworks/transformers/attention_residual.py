"""Inkling 2's layer and the end of its model: mixtures of earlier layers' streams, which learned queries weigh.

Source: transformers 5.23 models/inkling2/modeling_inkling2.py (Inkling2BlockAttentionResidual,
Inkling2SlidingDecoderLayer, Inkling2FullDecoderLayer, Inkling2TextModel.forward). The streams, [tokens, streams,
hidden], are a variable of the model's forward and an argument of its layers; every few layers a new tensor of one more
takes their place. scaled_dot_product_attention runs the memory-efficient kernel: heads are too wide for another.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.curve import checkpointed
from memcheck.autograd.elementwise import add, cast, mean_rows, mul, power, unary
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import operator
from memcheck.autograd.shared import Waiting, held_until_backward, with_gradient_of
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.clipped_attention import clipped_attention
from memcheck.frameworks.transformers.relative import short_convolution
from memcheck.models.types import Attention, Block, Moe, Norm, ParameterTensor, Sources

LSE_ALIGNMENT = 32
"""Queries to a multiple of which the kernel makes room for logsumexps (aten/src/ATen/native/transformers/cuda/
attention.cu, ``kAlignLSE``)."""


def run(ctx: Context, block: Block, sources: Sources, x: Value, *, recompute: bool) -> Value:
    """The layer, with the code around it in the model's loop."""
    tape, count, rows = ctx.tape, sources.given, ctx.tokens
    if ctx.setting.reentrant:
        raise UnsupportedError(
            "memcheck has no model of reentrant checkpoints around layers that weigh earlier ones' streams",
            "write `reentrant: false`",
            "/training/activation_checkpointing/reentrant",
        )
    # after the last layer comes the end's own tensor, of one stream more; the streams' gradient is a slice of its
    # gradient
    behind = (rows, count + sources.adds + sources.last, ctx.hidden)
    states, kept = _given(ctx, count, x.dtype, None if sources.adds else behind), list[Storage]()
    inside = held_until_backward(tape, x, kept) if recompute and sources.first else x
    if recompute:
        y = checkpointed(ctx, lambda c, v: _layer(c, block, sources, states, v), inside)
    else:
        y = _layer(ctx, block, sources, states, inside)
    del inside
    made: Storage | None = None
    if sources.adds:
        whole = (rows, count + 1, ctx.hidden)
        both = _joined(tape, states, x, whole)
        made = both.storage
        y = with_gradient_of(tape, y, both, behind)
        del both
    silent, tape.silent = tape.silent, True
    if recompute and sources.first and count:
        kept.append(tape.new(states.shape, x.dtype, "streams of earlier layers"))
    elif made is None and not recompute and count:
        made = tape.new(states.shape, x.dtype, "streams of earlier layers")
    tape.silent = silent
    if made is not None:
        ctx.returned.append(Value(made, made.shape, x.dtype))
    return y


def last_mixture(ctx: Context, count: int, tensor: ParameterTensor, x: Value) -> Value:
    """``final_input``: what the final norm reads; its gradient of the streams waits for the layers'."""
    states = _given(ctx, count, x.dtype, None)
    return weighed(ctx, tensor, states, x)[0]


def weighed(ctx: Context, tensor: ParameterTensor, states: Value, partial: Value) -> list[Value]:
    """Inkling2BlockAttentionResidual.forward: one fp32 mixture for each query; autocast's kernel makes narrow ones."""
    tape, rows, hidden = ctx.tape, ctx.tokens, ctx.hidden
    count = states.shape[1] + 1
    queries = tensor.shape[0] if len(tensor.shape) > 1 else 1
    stacked = cast(tape, _joined(tape, states, partial, (rows, count, hidden), partly=True), "fp32")
    stacked = unweighted(tape, stacked)
    weight = tape.parameter(ctx.parameter(tensor.name, tensor.shape, "fp32"))
    small = tensor.shape
    query = operator(tape, Value(None, (rows, queries, hidden), "fp32"), weight, (small, "fp32", "sum"))
    keys = values = stacked
    if tape.autocast:
        narrow = tape.autocast
        wide = query
        query = operator(tape, tape.value(wide.shape, narrow, "to"), wide, (wide.shape, "fp32", "to backward"))
        keys, values = cast(tape, stacked, narrow), cast(tape, stacked, narrow)
    out = _attended(tape, query, keys, values)
    del query, keys, values
    return tape.views(out, *[(rows, hidden)] * queries)


def unweighted(tape: Tape, x: Value) -> Value:
    """Inkling2UnweightedRMSNorm of an fp32 tensor."""
    return mul(tape, x, unary(tape, mean_rows(tape, power(tape, x)), "rsqrt"))


def _attended(tape: Tape, query: Value, keys: Value, values: Value) -> Value:
    """The kernel on [batch, sequence, queries, hidden], each token a head of its own: it keeps queries, keys and
    values, the output and logsumexps.
    """
    shape, dtype, rows = query.shape, query.dtype, query.shape[0]
    out = tape.value(shape, dtype, "mixtures")
    lse = tape.new((rows, -(-shape[1] // LSE_ALIGNMENT) * LSE_ALIGNMENT), "fp32", "logsumexp of mixtures")
    return operator(tape, out, (query, keys, values), "mixtures backward", saves=(query, keys, values, out, lse))


def _given(ctx: Context, count: int, dtype: str, behind: tuple[int, ...] | None) -> Value:
    """The streams, whose bytes are counted elsewhere. The first one may be the embedding's rows without a gradient."""
    s, shape = ctx.setting, (ctx.tokens, count, ctx.hidden)
    wants = count > 0 and (s.encoded_grad or (count > 1 and s.input_grad))
    leaf = Waiting(ctx.tape, shape, dtype, behind) if wants else None
    return Value(ctx.tape.new((0,), dtype, "streams"), shape, dtype, leaf)


def _joined(tape: Tape, states: Value, partial: Value, shape: tuple[int, ...], *, partly: bool = False) -> Value:
    """``torch.cat([states, partial.unsqueeze(-2)], dim=-2)``: gradients are slices of the whole, or casts of them.

    That of the last stream meets another one that is there and holds no slice (``partly``), or makes a tensor with it.
    """
    dtype = promote(states.dtype, partial.dtype)
    out = tape.value(shape, dtype, "joined streams")
    small, narrow, row = states.shape, states.dtype, partial.shape
    ns, np, own = states.origin is not None, partial.origin is not None, partial.dtype

    def backward(grad: Storage) -> list[Storage | None]:
        first = None
        if ns:
            first = grad if narrow == dtype else tape.new(small, narrow, "to backward")
        return [first, tape.new((0,) if partly else row, own, "slice of the gradient") if np else None]

    return tape.record(out, (states, partial), backward)


def _layer(ctx: Context, block: Block, sources: Sources, states: Value, x: Value) -> Value:
    try:
        return _statements(ctx, block, sources, states, x)
    finally:  # a recompute may end early
        ctx.unused = []


def _statements(ctx: Context, block: Block, sources: Sources, states: Value, x: Value) -> Value:
    tape, stream = ctx.tape, x.dtype
    mixer, network = block.mixer, block.mlp
    if not isinstance(mixer, Attention) or mixer.relative is None or not isinstance(network, Moe):
        return x
    tensors = {t.name.removesuffix(".weight"): t for t in block.extra_tensors}
    inputs = [x]
    if sources.given:
        inputs = weighed(ctx, tensors["attention_input.query"], states, x)
    made = clipped_attention(ctx, mixer, mixer.relative, _normed(ctx, block, inputs, stream))
    del inputs
    made = short_convolution(ctx, tensors["post_attention_convolution.conv1d"], made, scaled=True)
    residual = cast(tape, made, "fp32")
    del made
    if sources.adds:
        states = _joined(tape, states, x, (ctx.tokens, sources.given + 1, ctx.hidden))
    else:
        residual = add(tape, cast(tape, x, "fp32"), residual, "residual")
    mixed = weighed(ctx, tensors["mlp_input.query"], states, residual)[0]
    out = _network(ctx, network, cast(tape, normalise(ctx, block.mlp_norm, mixed), stream))
    del mixed
    out = short_convolution(ctx, tensors["post_mlp_convolution.conv1d"], out, scaled=True)
    both = add(tape, residual, out, "residual")
    del residual, out, states
    return cast(tape, both, stream)


def _normed(ctx: Context, block: Block, inputs: list[Value], stream: str) -> list[Value]:
    """What queries, keys and values are made of: one tensor, or one each after norms of their own."""
    mixer = block.mixer
    kind = block.input_norm.kind if block.input_norm is not None else ""
    found = [cast(ctx.tape, normalise(ctx, block.input_norm, inputs[0]), stream)]
    if not isinstance(mixer, Attention) or mixer.relative is None or not mixer.relative.dynamic:
        return found * 3
    norm = Norm(kind, inputs[0].shape[-1])
    for which, name in ((1, "k_input_layernorm"), (2, "v_input_layernorm")):
        read = inputs[which % len(inputs)]
        found.append(cast(ctx.tape, normalise(ctx, norm, read, name), stream))
    return found


def _network(ctx: Context, network: Moe, x: Value) -> Value:
    from memcheck.frameworks.transformers.moe import moe

    return moe(ctx, network, x)
