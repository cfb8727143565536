"""Softmax attention of transformers models: projections, rotary embedding, kernel, output.

Sources: transformers 5.23 models/llama/modeling_llama.py, integrations/sdpa_attention.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import clamp, copy, mul, scale, unary
from memcheck.autograd.indexing import head_view, index, repeat_kv, slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.parallel import enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.rotary import rotate_half
from memcheck.autograd.shared import shared
from memcheck.autograd.tensor import Dim, Leaf, Tape, Value
from memcheck.frameworks.transformers.attend import attend
from memcheck.frameworks.transformers.kernel_choice import keeps_strides, turns_in_place
from memcheck.frameworks.transformers.modules import forward_of
from memcheck.frameworks.transformers.rotary import apply_rotary
from memcheck.models.attention_types import (
    BlockIndexer,
    BloomAttention,
    ExpandedFalconAttention,
    FalconH1Attention,
    Gemma4Attention,
    KeysAsValuesAttention,
    LateGateAttention,
    MimoAttention,
    ReusingAttention,
)
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, Norm

Heads = tuple[Value, Value, Value]


def attention(ctx: Context, a: Attention, x: Value, stream: str) -> Value:
    """One attention module. ``stream``: dtype of the residual stream, which is that of cos and sin."""
    tape = ctx.tape
    if (whole := forward_of(a.own)) is not None:
        return whole(ctx, a, a.own, x)
    tensors = linear_tensors(a.tensors)
    width = -(-a.heads // ctx.tp) * (a.v_head_dim or a.head_dim)
    x = enter_tensor_parallel(ctx, x)
    if isinstance(a, FalconH1Attention):
        x = scale(tape, x, "attention multiplier")
    gate, argument = None, x  # of the module's forward, which holds a gathered input to its end
    if a.fused_qkv:
        q, k, v = _fused_projection(ctx, a, x)
    else:
        q, k, v, gate = _projections(ctx, a, x)
    del x
    if isinstance(a, ReusingAttention):
        q = rotate_half(tape, q, stream)
    elif a.rotary_dim and turns_in_place(ctx):
        q, k = _turned_in_place(ctx, a, q, k)
    elif a.rotary_dim:
        q, k = apply_rotary(ctx, a, q, k, stream)
    if a.norms_after_rotary:
        q = normalise(ctx, a.query_norm, q, "qk_norm").view(*q.shape)
        k = normalise(ctx, a.key_norm, k, "qk_norm").view(*k.shape)
    if a.stores_keys:
        from memcheck.autograd.checkpoint import retain

        retain(tape, k, v)
    if a.scaled_queries:
        q = scale_positions(ctx, q)
    out = _attended(ctx, a, q, k, v).view(ctx.tokens, width)
    out = _gated(ctx, a, out, gate, argument)
    del gate
    last = tensors[3 if a.gate_matrix or a.scaled_output else -1]
    result = linear(tape, out, ctx.weights(last, a.out_bias), last.name)
    result = leave_tensor_parallel(ctx, result)  # a hook of the last matrix: every variable lives until it has run
    if isinstance(a, BloomAttention):
        ctx.named += [q, k, v]
    else:
        ctx.named = []
    del argument, out, q, k, v
    return result


def _attended(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """Scores, softmax and product, as the family writes them."""
    if isinstance(a.own, BlockIndexer):
        from memcheck.frameworks.transformers.block_mask import attend_to_blocks

        return attend_to_blocks(ctx, a, a.own, q, k, v)
    if a.bias:
        from memcheck.frameworks.transformers.position_bias import attend_with_biases

        return attend_with_biases(ctx, a, q, k, v)
    return attend(ctx, a, q, k, v)


def _gated(ctx: Context, a: Attention, out: Value, gate: Value | None, x: Value) -> Value:
    """The output times a gate of each element or each head, where there is one."""
    tape = ctx.tape
    if isinstance(a, LateGateAttention):
        tensor = linear_tensors(a.tensors)[4]
        made = linear(tape, x, ctx.weights(tensor, False, adaptable=a.gate_adaptable), tensor.name)
        return mul(tape, out, unary(tape, made, "sigmoid"))
    if gate is None:
        return out
    opened = unary(tape, gate, "sigmoid")
    return mul(tape, out, opened.view(*out.shape) if opened.numel == out.numel else opened)


def scale_positions(ctx: Context, q: Value) -> Value:
    """``q * get_llama_4_attn_scale(positions).to(q.dtype)``: the scale of each position is kept, q is not."""
    tape = ctx.tape
    factors = tape.new((ctx.sequence,), q.dtype, "query scale")
    return operator(tape, tape.value(q.shape, q.dtype, "scaled queries"), q, "query scale backward", saves=(factors,))


def _projections(ctx: Context, a: Attention, x: Value) -> tuple[Value, Value, Value, Value | None]:
    """q_proj, k_proj, v_proj, with their norms: over each head, or over all of them before they are heads."""
    tape = ctx.tape
    tensors = linear_tensors(a.tensors)
    heads, kv_heads = -(-a.heads // ctx.tp), max(1, -(-a.kv_heads // ctx.tp))
    copies = not turns_in_place(ctx) and (a.rotary_dim > 0 or not keeps_strides(ctx, a))
    gate = None
    norms = (None, None) if a.norms_after_rotary else (a.query_norm, a.key_norm)
    q = linear(tape, x, ctx.weights(tensors[0], a.qkv_bias), tensors[0].name)
    if a.scaled_projection and norms[0] is None:
        q = scale(tape, q, "query scaling")
    if a.output_gate:
        half = (ctx.tokens, q.shape[-1] // 2)
        q, gate = tape.views(q, half, half)
    q = clamp(tape, q, 2) if a.clip_qkv else q
    q = as_heads(ctx, a, q, heads, norms[0], copies)
    if a.scaled_projection and norms[0] is not None:
        q = scale(tape, q, "query scaling")
    if isinstance(a, (Gemma4Attention, ReusingAttention)):
        return q, *_keys_and_values(ctx, a, x, kv_heads), gate
    rows: int = ctx.sequence
    if a.cross:
        x, rows = _encoded(ctx)
    k = linear(tape, x, ctx.weights(tensors[1], a.qkv_bias and a.key_bias, rows=a.kv_heads), tensors[1].name)
    k = clamp(tape, k, 2) if a.clip_qkv else k
    k = scale(tape, k, "key multiplier") if isinstance(a, FalconH1Attention) else k
    k = as_heads(ctx, a, k, kv_heads, norms[1], copies, rows=rows)
    v = linear(tape, x, ctx.weights(tensors[2], a.qkv_bias, rows=a.kv_heads), tensors[2].name)
    v = clamp(tape, v, 2) if a.clip_qkv else v
    if a.gate_matrix and not isinstance(a, LateGateAttention):
        gate = linear(tape, x, ctx.weights(tensors[4], False, adaptable=a.gate_adaptable), tensors[4].name)
    v = as_heads(ctx, a, v, kv_heads, None, not keeps_strides(ctx, a), each=a.v_head_dim or a.head_dim, rows=rows)
    return q, k, scale(tape, v, "value scale") if isinstance(a, MimoAttention) else v, gate


def _keys_and_values(ctx: Context, a: Attention, x: Value, kv_heads: int) -> tuple[Value, Value]:
    """Gemma 4: normed values, which may be the keys' projection, or both of a layer before, whose bytes are its own."""
    tape = ctx.tape
    shape, copies = (ctx.batch, kv_heads, ctx.sequence, a.head_dim), not keeps_strides(ctx, a)
    if isinstance(a, ReusingAttention):
        dtype = tape.autocast or x.dtype
        leaf = None if x.origin is None else Leaf()
        return Value(None, shape, dtype, leaf), Value(None, shape, dtype, leaf)
    tensors = linear_tensors(a.tensors)
    made = linear(tape, x, ctx.weights(tensors[1], a.qkv_bias, rows=a.kv_heads), tensors[1].name)
    k = as_heads(ctx, a, made, kv_heads, a.key_norm, True)
    if not isinstance(a, KeysAsValuesAttention):
        made = linear(tape, x, ctx.weights(tensors[2], a.qkv_bias, rows=a.kv_heads), tensors[2].name)
    return k, as_heads(ctx, a, made, kv_heads, Norm("l2", a.head_dim, weight=False), copies)


def as_heads(
    ctx: Context,
    a: Attention,
    x: Value,
    heads: int,
    norm: Norm | None,
    copies: bool,
    *,
    each: int = 0,
    rows: int = 0,
) -> Value:
    """What a projection makes, head by head, after its norm. ``copies``: the gradient comes back head by head."""
    shape = (ctx.batch, heads, rows or ctx.sequence, each or a.head_dim)
    if norm is not None and norm.size != a.head_dim:
        x, norm = normalise(ctx, norm._replace(size=x.shape[-1]), x, "qk_norm"), None
    if a.contiguous:  # modeling_whisper.py, `.transpose(1, 2).contiguous()`
        return copy(ctx.tape, head_view(ctx.tape, x, shape), "contiguous")
    x = head_view(ctx.tape, x, shape) if copies else x.view(*shape)
    return normalise(ctx, norm, x, "qk_norm").view(*shape)  # what a norm puts together head by head is flat


def _fused_projection(ctx: Context, a: Attention, x: Value) -> Heads:
    """One matrix for q, k and v, taken apart as the family does it (``fused_form``)."""
    tape = ctx.tape
    tensor = linear_tensors(a.tensors)[0]
    b, s, d = ctx.batch, ctx.sequence, a.head_dim
    heads, kv_heads = -(-a.heads // ctx.tp), max(1, -(-a.kv_heads // ctx.tp))
    qkv = linear(tape, x, ctx.weights(tensor, a.qkv_bias), tensor.name)
    if a.clip_qkv:
        qkv = clamp(tape, qkv, 2)
    q_shape, kv_shape = (b, heads, s, d), (b, kv_heads, s, d)
    if a.fused_form == "index":
        return _indexed(ctx, a, qkv)
    if a.fused_form == "slices":
        q, k, v = slices(tape, qkv, q_shape, kv_shape, kv_shape)
    else:
        if a.fused_form == "heads":  # head by head: the joined gradient is not in the order of the matrix
            qkv = head_view(tape, qkv, qkv.shape)
        q, k, v = tape.views(qkv, q_shape, kv_shape, kv_shape)
        if a.fused_form == "shards":  # heads of four slices are put together, each a copy
            ctx.named.append(qkv)
            q, k, v = (copy(tape, part, "reshape") for part in (q, k, v))
    return normalise(ctx, a.query_norm, q, "qk_norm"), normalise(ctx, a.key_norm, k, "qk_norm"), v


def _indexed(ctx: Context, a: Attention, qkv: Value) -> Heads:
    """Falcon: q is a slice, k and v are picked with an index list and so copied (again, to q's heads: Falcon 40B)."""
    tape = ctx.tape
    b, s, d = ctx.batch, ctx.sequence, a.head_dim
    heads, kv_heads = -(-a.heads // ctx.tp), max(1, -(-a.kv_heads // ctx.tp))
    ctx.named.append(qkv)
    q = slices(tape, qkv, (b, heads, s, d))[0]
    indices = tape.new((1,), "int64", "head index")
    k = index(tape, qkv, indices, (b, kv_heads, s, d), "k heads")
    v = index(tape, qkv, indices, (b, kv_heads, s, d), "v heads")
    if isinstance(a, ExpandedFalconAttention):  # flatten(2, 3) of the slice, and of k and v broadcast to it
        if kv_heads > 1:
            q = copy(tape, q, "q heads")
        k, v = repeat_kv(tape, k, heads), repeat_kv(tape, v, heads)
    return q, k, v


def _turned_in_place(ctx: Context, a: Attention, q: Value, k: Value) -> tuple[Value, Value]:
    """LigerRopeFunction: rotates q and k where they are, and their gradients, once those lie token by token.

    Parts of a fused projection are copied first; gradients of kernels that go head by head are, too.
    """
    tape, copies = ctx.tape, not keeps_strides(ctx, a)
    if a.fused_qkv:
        q, k = copy(tape, q, "contiguous"), copy(tape, k, "contiguous")
    return _one_in_place(tape, q, copies=copies), _one_in_place(tape, k, copies=copies)


def _one_in_place(tape: Tape, x: Value, *, copies: bool) -> Value:
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, "contiguous gradient" if copies else PASSED)


def _encoded(ctx: Context) -> tuple[Value, int]:
    """The encoder's output, one value for all that read it, and its rows of each sample."""
    s = ctx.setting
    rows = Dim(s.encoded, "E")
    if ctx.encoded is None:
        shape = (Dim(s.batch * s.encoded, "E"), ctx.hidden)
        dtype = s.encoded_dtype or s.stream or s.params
        ctx.encoded = shared(ctx.tape, shape, dtype, wants=s.encoded_grad, starts=s.gathers)
    return ctx.encoded, rows
