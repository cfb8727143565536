"""ZAYA's layer: attention between compressed convolutions, scaled sums in fp32, a router whose state goes on.

Source: transformers 5.23 models/zaya/modeling_zaya.py (ZayaCCAProjection, ZayaQKNorm, ZayaAttention,
ZayaResidualScaling, ZayaRouter, ZayaSparseMoeBlock, ZayaDecoderLayer, ZayaModel.forward).
"""

from __future__ import annotations

from memcheck.autograd.attention import softmax
from memcheck.autograd.context import Context
from memcheck.autograd.curve import checkpointed
from memcheck.autograd.elementwise import add, cast, cat, clamp, mul, scale, unary
from memcheck.autograd.indexing import gather, repeat_kv, slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.shared import Waiting, held_until_backward, with_gradient_of
from memcheck.autograd.tensor import RESTING, Storage, Tape, Value, promote
from memcheck.errors import UnsupportedError
from memcheck.frameworks.transformers.attend import attend
from memcheck.frameworks.transformers.moe import experts
from memcheck.frameworks.transformers.rotary import apply_rotary
from memcheck.models.types import Attention, Block, Handed, Moe, Norm, ParameterTensor

Tensors = dict[str, ParameterTensor]


def run(ctx: Context, block: Block, handed: Handed, x: Value, *, recompute: bool) -> Value:
    """The layer, with the router's state that it is given and hands on; the model's own sum in front of the first."""
    tape, s = ctx.tape, ctx.setting
    if s.reentrant:
        raise UnsupportedError(
            "memcheck has no model of reentrant checkpoints around layers that hand a router's state on",
            "write `reentrant: false`",
            "/training/activation_checkpointing/reentrant",
        )
    if ctx.tp > 1 or s.context > 1 or s.expert > 1:
        said = "memcheck has no model of ZAYA's layers on several ranks"
        raise UnsupportedError(said, "leave tensor, context and expert at 1", "/parallelism")
    tensors = {t.name: t for t in block.extra_tensors}
    if handed.first:
        x = _entered(ctx, tensors, x)
    shape = (ctx.tokens, handed.width)
    narrow = tape.autocast or s.params
    before, kept = None, list[Storage]()
    if not handed.first:
        before = Value(tape.new((0,), narrow, "router states"), shape, narrow, None)
        if s.trained or s.input_grad:
            before.origin = Waiting(tape, shape, narrow, None)
        x = held_until_backward(tape, x, kept)
    made: list[Value] = []

    def forward(c: Context, value: Value) -> Value:
        try:
            y, state = _layer(c, block, tensors, value, before)
        finally:  # a recompute may end early
            c.unused = []
        if not made:  # the recompute makes it again, and nothing reads it
            made.append(state)
        return y

    y = checkpointed(ctx, forward, x) if recompute else forward(ctx, x)
    state = made[0]
    if not handed.last:
        y = with_gradient_of(tape, y, state, state.shape)
    ctx.returned.append(Value(state.storage, shape, state.dtype))  # a variable of the model's loop
    state.storage = None
    if not handed.first:
        silent, tape.silent = tape.silent, True
        kept.append(tape.new(shape, narrow, "router states"))
        tape.silent = silent
    return y


def _entered(ctx: Context, tensors: Tensors, x: Value) -> Value:
    """``((inputs_embeds + bias) * scale).to(torch.float32)``."""
    names = ("input_hidden_states_bias", "input_hidden_states_scale")
    return cast(ctx.tape, _affine(ctx, tensors, x, *names), "fp32")


def _affine(ctx: Context, tensors: Tensors, x: Value, bias: str, factor: str) -> Value:
    """``(x + bias) * scale`` with a vector each."""
    tape = ctx.tape
    offset, vector = (tape.parameter(ctx.parameter(tensors[n].name, tensors[n].shape)) for n in (bias, factor))
    dtype = promote(x.dtype, offset.dtype)
    both = tape.value(x.shape, dtype, "+ bias")
    both = operator(tape, both, (x, offset), PASSED, validated=True)
    return _times(tape, both, vector)


def _times(tape: Tape, x: Value, vector: Value) -> Value:
    """``x * vector``: keeps the resident vector, and x where the vector wants a gradient."""
    out = tape.value(x.shape, promote(x.dtype, vector.dtype), "scaled")
    nx, nv = x.origin is not None, vector.origin is not None
    shape, dtype = out.shape, out.dtype

    def run(grad: Storage) -> list[Storage | None]:
        return [tape.new(shape, dtype, "scaled backward") if wanted else None for wanted in (nx, nv)]

    return tape.record(
        out,
        (x, vector),
        run,
        validated=True,
        saves_first=True,
        saves=(x.storage if nv else None, RESTING if nx else None),
    )


def _scaled_sum(ctx: Context, tensors: Tensors, module: str, h: Value, residual: Value) -> Value:
    """ZayaResidualScaling.forward."""
    h = _affine(ctx, tensors, h, f"{module}.hidden_states_bias", f"{module}.hidden_states_scale")
    residual = _affine(ctx, tensors, residual, f"{module}.residual_bias", f"{module}.residual_scale")
    return add(ctx.tape, h, residual, "residual")


def _layer(ctx: Context, block: Block, tensors: Tensors, x: Value, before: Value | None) -> tuple[Value, Value]:
    tape, params = ctx.tape, ctx.setting.params
    a, m = block.mixer, block.mlp
    if not isinstance(a, Attention) or not isinstance(m, Moe):
        return x, x
    h = cca_attention(ctx, a, normalise(ctx, block.input_norm, cast(tape, x, params)))
    residual = _scaled_sum(ctx, tensors, "post_attention_residual_scale", h, x)
    h = normalise(ctx, block.mlp_norm, cast(tape, residual, params))
    scores, indices, state = _routed(ctx, m, h, before)
    out = experts(ctx, m, h, scores, indices)
    del h, scores, indices
    return _scaled_sum(ctx, tensors, "post_mlp_residual_scale", out, residual), state


def cca_attention(ctx: Context, a: Attention, x: Value) -> Value:
    """ZayaAttention.forward."""
    tape, (b, s, d) = ctx.tape, (ctx.batch, ctx.sequence, a.head_dim)
    tensors = {t.name.removeprefix("self_attn.").removesuffix(".weight"): t for t in a.tensors}
    q, k, v = _projected(ctx, a, tensors, x)
    q, k = _unit(tape, q, (ctx.tokens, a.heads, d)), _unit(tape, k, (ctx.tokens, a.kv_heads, d))
    factor = tensors["qk_norm.temp"]
    k = mul(tape, k, tape.parameter(ctx.parameter(factor.name, factor.shape)), "key scale")
    q, k, v = (t.view(b, n, s, d) for t, n in ((q, a.heads), (k, a.kv_heads), (v, a.kv_heads)))
    q, k = apply_rotary(ctx, a, q, k, ctx.setting.params)
    out = attend(ctx, a, q, k, v).view(ctx.tokens, a.heads * d)
    result = _matrix(ctx, a, tensors["o_proj"], out)
    ctx.named = []
    del q, k, v, out
    return result


def _matrix(ctx: Context, a: Attention, tensor: ParameterTensor, x: Value) -> Value:
    return linear(ctx.tape, x, ctx.replicated(tensor, a.qkv_bias), tensor.name)


def _projected(ctx: Context, a: Attention, tensors: Tensors, x: Value) -> tuple[Value, Value, Value]:
    """ZayaCCAProjection.forward: queries and keys through two convolutions, each plus a mean of both projections."""
    tape, rows = ctx.tape, ctx.tokens
    queries, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    q, k = (_matrix(ctx, a, tensors[f"qkv_proj.{n}_proj"], x) for n in ("q", "k"))
    joined = cat(tape, (q, k), (rows, queries + keys), "queries and keys")
    heads = k.view(ctx.batch, a.kv_heads, ctx.sequence, a.head_dim)
    repeated = repeat_kv(tape, heads, a.heads) if a.heads != a.kv_heads else heads
    mean = scale(tape, add(tape, q, repeated.view(rows, queries), "queries + keys"), "half")
    del repeated, heads
    smaller = _mean_of_groups(tape, mean, (rows, keys))
    convolved = _convolved(ctx, tensors, joined)
    del joined
    first, second = slices(tape, convolved, (rows, queries), (rows, keys))
    query = add(tape, first, mean, "queries + mean")
    key = add(tape, second, smaller, "keys + mean")
    del first, second
    current = _matrix(ctx, a, tensors["qkv_proj.v_proj_current"], x)
    delayed = _matrix(ctx, a, tensors["qkv_proj.v_proj_delayed"], x)
    half = (rows, keys // 2)
    shifted = cat(tape, tuple(slices(tape, delayed, half)), half, "delayed values")
    value = cat(tape, (current, shifted), (rows, keys), "values")
    del q, k, mean, smaller, convolved, current, delayed, shifted
    return query, key, value


def _mean_of_groups(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``.mean(dim=-2)`` over each group's heads: backward divides an expanded gradient."""
    return operator(tape, tape.value(shape, x.dtype, "mean of groups"), x, "mean backward")


def _convolved(ctx: Context, tensors: Tensors, x: Value) -> Value:
    """``F.pad`` in front of the sequence, a convolution of each channel, one of each head's."""
    tape, channels = ctx.tape, x.shape[-1]
    first, second = (tensors[f"qkv_proj.conv_qk_{n}"] for n in ("depthwise", "grouped"))
    lost = (first.shape[-1] - 1, second.shape[-1] - 1)
    long = (ctx.batch * (ctx.sequence + sum(lost)), channels)
    dtype = x.dtype
    h = operator(tape, tape.value(long, dtype, "pad"), x, "pad backward")
    for tensor, rest in ((first, lost[1]), (second, 0)):
        bias = tensors[tensor.name.removeprefix("self_attn.").removesuffix(".weight") + ".bias"]
        h = _convolution(ctx, tensor, bias, h, (ctx.batch * (ctx.sequence + rest), channels))
    return h


def _convolution(
    ctx: Context, tensor: ParameterTensor, bias: ParameterTensor, x: Value, shape: tuple[int, ...]
) -> Value:
    """``nn.Conv1d``: keeps its input and its weight."""
    tape = ctx.tape
    weight, offset = (tape.parameter(ctx.parameter(t.name, t.shape)) for t in (tensor, bias))
    if tape.autocast:
        x, weight, offset = (cast(tape, t, tape.autocast) for t in (x, weight, offset))
    out = tape.value(shape, x.dtype, "conv1d")
    return operator(tape, out, (x, weight, offset), "conv1d backward", saves=(x, weight))


def _unit(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``x * (scale / x.norm(dim=-1, keepdim=True).clamp_min(eps))``; autocast makes the norm fp32."""
    x = x.view(*shape)
    norm = _norm(tape, cast(tape, x, "fp32") if tape.autocast else x)
    ratio = scale(tape, unary(tape, clamp(tape, norm, 1), "reciprocal"))
    return mul(tape, x, ratio)


def _norm(tape: Tape, x: Value) -> Value:
    """``x.norm(p=2)``: keeps its input and its result; backward makes a tensor of the input's size."""
    out = tape.value((*x.shape[:-1], 1), x.dtype, "norm")
    return operator(tape, out, x, "norm backward", saves=(x, out))


def _routed(ctx: Context, m: Moe, x: Value, before: Value | None) -> tuple[Value, Storage, Value]:
    """ZayaRouter.forward: scores and indices of one expert each, and the state for the next layer."""
    tape, tensors = ctx.tape, {t.name.removeprefix("mlp.gate."): t for t in m.tensors}

    def layer(name: str, value: Value, *, bias: bool = True) -> Value:
        return linear(tape, value, ctx.replicated(tensors[name + ".weight"], bias), name)

    h = layer("down_proj", x)
    if before is not None:
        factor = tensors["router_states_scale"]
        weighed = mul(tape, before, tape.parameter(ctx.parameter(factor.name, factor.shape)), "router states")
        h = add(tape, h, weighed, "router states")
        del weighed
    whole = slices(tape, h, h.shape)[0]
    state = operator(tape, tape.value(h.shape, h.dtype, "clone"), whole, PASSED)
    del whole
    r = normalise(ctx, Norm("rmsnorm", h.shape[-1]), h, "mlp.gate.router_mlp.norm")
    for name in ("fc1", "fc2"):
        r = unary(tape, layer(f"router_mlp.{name}", r), "gelu")
    logits = layer("router_mlp.out_proj", r, bias=False)
    chances = softmax(tape, logits, "fp32" if tape.autocast else None)
    for_choice = tape.new(chances.shape, "fp32", "scores for choice")
    indices = tape.new((ctx.tokens, 1), "int64", "topk indices")
    scores = gather(tape, chances, indices)
    scores = scale(tape, scores, "masked scores")
    chosen = tape.new((ctx.tokens, 1), "int64", "masked indices")
    del for_choice, indices, r, h, logits
    return scores, chosen, state
