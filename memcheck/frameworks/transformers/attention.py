"""Softmax attention of transformers models: projections, rotary embedding, kernel, output.

Sources: transformers 5.23 models/llama/modeling_llama.py, integrations/sdpa_attention.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.engine import retain
from memcheck.autograd.kernels import linear, rotate_half
from memcheck.autograd.modules import enter_tensor_parallel, leave_tensor_parallel, normalise
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    clamp,
    copy,
    head_view,
    index,
    mul,
    operator,
    repeat_kv,
    scale,
    slices,
    unary,
)
from memcheck.autograd.tensor import Dim, Leaf, Tape, Value, ceil_div, shared
from memcheck.frameworks.transformers.kernel_choice import attend, keeps_strides, turns_in_place
from memcheck.frameworks.transformers.modules import forward_of
from memcheck.frameworks.transformers.rotary import apply_rotary
from memcheck.models.module_types import (
    BlockIndexer,
    BloomAttention,
    ExpandedFalconAttention,
    FalconH1Attention,
    Gemma4Attention,
    KeysAsValuesAttention,
    LateGateAttention,
    MimoAttention,
    ReusingAttention,
    WhisperAttention,
)
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, Norm, ParameterTensor

Heads = tuple[Value, Value, Value]


def attention(ctx: Context, attention: Attention, x: Value, stream: str) -> Value:
    """Replay one attention module of transformers, ``hidden_states, _ = self.self_attn(hidden_states)``.

    ``x``: [tokens, hidden]; so is what is returned. ``stream``: dtype of the residual stream, in which cos and sin are.
    The order of the steps, and what each variable keeps alive, is that of models/llama/modeling_llama.py.
    """
    tape = ctx.tape
    own_forward = forward_of(attention.extension)
    if own_forward is not None:
        return own_forward(ctx, attention, attention.extension, x)
    tensors = linear_tensors(attention.tensors)
    width = ceil_div(attention.heads, ctx.tp) * (attention.v_head_dim or attention.head_dim)
    x = enter_tensor_parallel(ctx, x)
    if isinstance(attention, FalconH1Attention):
        x = scale(tape, x, "attention multiplier")
    module_input = x  # an argument of the module's forward, which holds a gathered input to its end
    gate = None
    if attention.fused_qkv:
        q, k, v = _fused_projection(ctx, attention, x)
    else:
        q, k, v, gate = _projections(ctx, attention, x)
    del x
    if isinstance(attention, ReusingAttention):
        q = rotate_half(tape, q, stream)
    elif attention.rotary_dim and turns_in_place(ctx):
        q, k = _rotate_in_place(ctx, attention, q, k)
    elif attention.rotary_dim:
        q, k = apply_rotary(ctx, attention, q, k, stream)
    if attention.rotation.before_norms:
        q = normalise(ctx, attention.query_norm, q, "qk_norm").view(*q.shape)
        k = normalise(ctx, attention.key_norm, k, "qk_norm").view(*k.shape)
    if attention.stores_keys:
        retain(tape, k, v)
    if attention.query_scale == "position":
        q = scale_positions(ctx, q)
    out = _attend(ctx, attention, q, k, v).view(ctx.tokens, width)
    out = _apply_gate(ctx, attention, out, gate, module_input)
    del gate
    has_later_matrix = attention.gate_matrix or attention.sinks == "scale"  # after q, k, v and the output matrix
    output_matrix = tensors[3] if has_later_matrix else tensors[-1]
    result = linear(tape, out, ctx.weights(output_matrix, attention.out_bias), output_matrix.name)
    result = leave_tensor_parallel(ctx, result)  # a hook of the last matrix: every variable lives until it has run
    if isinstance(attention, BloomAttention):
        ctx.attention_locals += [q, k, v]
    else:
        ctx.attention_locals = []
    return result


def _attend(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Compute softmax(q k^T) v with the kernel or the biases that the family uses.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim], k and v with ``kv_heads`` heads.
    """
    if isinstance(attention.extension, BlockIndexer):
        from memcheck.frameworks.transformers.block_mask import attend_to_blocks

        return attend_to_blocks(ctx, attention, attention.extension, q, k, v)
    if attention.position_bias:
        from memcheck.frameworks.transformers.position_bias import attend_with_biases

        return attend_with_biases(ctx, attention, q, k, v)
    return attend(ctx, attention, q, k, v)


def _apply_gate(ctx: Context, attention: Attention, out: Value, gate: Value | None, x: Value) -> Value:
    """Multiply the attention output by the sigmoid of a gate, if the module has one.

    ``out``: [tokens, heads * v_head_dim]. ``gate``: made from the input before attention, one number per element or per
    head. ``x``: the module's input; a ``LateGateAttention`` projects its gate from it after attention.
    """
    tape = ctx.tape
    if isinstance(attention, LateGateAttention):
        gate_matrix = linear_tensors(attention.tensors)[4]
        gate_logits = linear(
            tape, x, ctx.weights(gate_matrix, bias=False, adaptable=attention.gate_matrix != "hidden"), gate_matrix.name
        )
        return mul(tape, out, unary(tape, gate_logits, "sigmoid"))
    if gate is None:
        return out
    sigmoid_gate = unary(tape, gate, "sigmoid")
    return mul(tape, out, sigmoid_gate.view(*out.shape) if sigmoid_gate.numel == out.numel else sigmoid_gate)


def scale_positions(ctx: Context, q: Value) -> Value:
    """Scale the queries by position: ``q * get_llama_4_attn_scale(positions).to(q.dtype)``.

    Autograd saves the scale of each position, [sequence]. It does not save q, because the scale has no gradient.
    """
    tape = ctx.tape
    factors = tape.new((ctx.sequence,), q.dtype, "query scale")
    return operator(tape, tape.value(q.shape, q.dtype, "scaled queries"), q, "query scale backward", saves=(factors,))


def _projections(ctx: Context, attention: Attention, x: Value) -> tuple[Value, Value, Value, Value | None]:
    """Compute q_proj, k_proj and v_proj with their query and key norms, and the output gate if there is one.

    ``x``: [tokens, hidden]. Returns q, k, v as [batch, heads, sequence, head_dim] and the gate. For cross-attention k
    and v are projected from the encoder's output.
    """
    tape, tensors = ctx.tape, linear_tensors(attention.tensors)
    q, gate = _queries(ctx, attention, x)
    if isinstance(attention, (Gemma4Attention, ReusingAttention)):
        return q, *_keys_and_values(ctx, attention, x), gate
    kv_sequence: int = ctx.sequence
    if attention.cross:
        x, kv_sequence = _encoder_output(ctx)
    k = _keys(ctx, attention, x, kv_sequence)
    v = linear(tape, x, ctx.weights(tensors[2], attention.qkv_bias, rows=attention.kv_heads), tensors[2].name)
    if attention.clip_qkv:
        v = clamp(tape, v, bounds=2)
    if attention.gate_matrix and not isinstance(attention, LateGateAttention):
        gate_weights = ctx.weights(tensors[4], bias=False, adaptable=attention.gate_matrix != "hidden")
        gate = linear(tape, x, gate_weights, tensors[4].name)
    copies, head_dim = not keeps_strides(ctx, attention), attention.v_head_dim or attention.head_dim
    kv_heads = _kv_heads(ctx, attention)
    v = as_heads(ctx, attention, v, kv_heads, None, copies=copies, head_dim=head_dim, sequence=kv_sequence)
    if isinstance(attention, MimoAttention):
        v = scale(tape, v, "value scale")
    return q, k, v, gate


def _queries(ctx: Context, attention: Attention, x: Value) -> tuple[Value, Value | None]:
    """Project ``x`` [tokens, hidden] to normed queries, [batch, heads, sequence, head_dim].

    The second result is the half of the projection that gates the attention's output (Qwen3-Next); None without one.
    """
    tape, matrix, gate = ctx.tape, linear_tensors(attention.tensors)[0], None
    norm = None if attention.rotation.before_norms else attention.query_norm  # else they are normed after it
    is_scaled = attention.query_scale == "constant"
    q = linear(tape, x, ctx.weights(matrix, attention.qkv_bias), matrix.name)
    if is_scaled and norm is None:
        q = scale(tape, q, "query scaling")
    if attention.output_gate:
        half = (ctx.tokens, q.shape[-1] // 2)
        q, gate = tape.views(q, half, half)
    if attention.clip_qkv:
        q = clamp(tape, q, bounds=2)
    heads = ceil_div(attention.heads, ctx.tp)
    q = as_heads(ctx, attention, q, heads, norm, copies=_copies_heads(ctx, attention))
    return scale(tape, q, "query scaling") if is_scaled and norm is not None else q, gate


def _keys(ctx: Context, attention: Attention, x: Value, sequence: int) -> Value:
    """Project ``x`` to normed keys, [batch, kv_heads, sequence, head_dim]. ``sequence``: tokens per sequence of x."""
    tape, matrix = ctx.tape, linear_tensors(attention.tensors)[1]
    norm = None if attention.rotation.before_norms else attention.key_norm  # else they are normed after it
    bias = attention.qkv_bias and not isinstance(attention, WhisperAttention)
    k = linear(tape, x, ctx.weights(matrix, bias, rows=attention.kv_heads), matrix.name)
    if attention.clip_qkv:
        k = clamp(tape, k, bounds=2)
    if isinstance(attention, FalconH1Attention):
        k = scale(tape, k, "key multiplier")
    kv_heads, copies = _kv_heads(ctx, attention), _copies_heads(ctx, attention)
    return as_heads(ctx, attention, k, kv_heads, norm, copies=copies, sequence=sequence)


def _kv_heads(ctx: Context, attention: Attention) -> int:
    """Return the heads of keys and values on this rank."""
    return max(1, ceil_div(attention.kv_heads, ctx.tp))


def _copies_heads(ctx: Context, attention: Attention) -> bool:
    """Say whether gradients of q and k arrive head by head, so that the backward of their transpose copies them."""
    return not turns_in_place(ctx) and (attention.rotary_dim > 0 or not keeps_strides(ctx, attention))


def _keys_and_values(ctx: Context, attention: Attention, x: Value) -> tuple[Value, Value]:
    """Compute the keys and values of Gemma 4, [batch, kv_heads, sequence, head_dim], both normed.

    ``KeysAsValuesAttention`` uses the key projection for both. ``ReusingAttention`` reads both from an earlier layer:
    they cost no bytes here, because that layer owns the storage.
    """
    tape, kv_heads = ctx.tape, _kv_heads(ctx, attention)
    shape, copies = (ctx.batch, kv_heads, ctx.sequence, attention.head_dim), not keeps_strides(ctx, attention)
    if isinstance(attention, ReusingAttention):
        dtype = tape.autocast or x.dtype
        leaf = Leaf() if x.needs_grad else None
        return Value(None, shape, dtype, leaf), Value(None, shape, dtype, leaf)

    def project(matrix: ParameterTensor) -> Value:
        return linear(tape, x, ctx.weights(matrix, attention.qkv_bias, rows=attention.kv_heads), matrix.name)

    _query_matrix, key_matrix, *value_and_output = linear_tensors(attention.tensors)
    projected = project(key_matrix)
    k = as_heads(ctx, attention, projected, kv_heads, attention.key_norm, copies=True)
    if not isinstance(attention, KeysAsValuesAttention):
        projected = project(value_and_output[0])
    value_norm = Norm("l2", attention.head_dim, weight=False)
    return k, as_heads(ctx, attention, projected, kv_heads, value_norm, copies=copies)


def as_heads(
    ctx: Context,
    attention: Attention,
    x: Value,
    heads: int,
    norm: Norm | None,
    *,
    copies: bool,
    head_dim: int = 0,
    sequence: int = 0,
) -> Value:
    """View a projection's output [tokens, heads * head_dim] as heads [batch, heads, sequence, head_dim], and norm it.

    ``copies``: the gradient arrives head by head, so that the transpose's backward copies it. ``head_dim``: width of a
    head, where it is not ``attention.head_dim``. ``sequence``: tokens per sequence, where they are not this module's
    (cross-attention).
    """
    shape = (ctx.batch, heads, sequence or ctx.sequence, head_dim or attention.head_dim)
    if norm is not None and norm.size != attention.head_dim:
        x, norm = normalise(ctx, norm._replace(size=x.shape[-1]), x, "qk_norm"), None
    if isinstance(attention, WhisperAttention):  # modeling_whisper.py, `.transpose(1, 2).contiguous()`
        return copy(ctx.tape, head_view(ctx.tape, x, shape), "contiguous")
    x = head_view(ctx.tape, x, shape) if copies else x.view(*shape)
    return normalise(ctx, norm, x, "qk_norm").view(*shape)  # the norm returns rows of head_dim


def _fused_projection(ctx: Context, attention: Attention, x: Value) -> Heads:
    """Compute q, k and v with one matrix, and split its output as the family does (``fused_form``).

    ``x``: [tokens, hidden]. Returns q, k, v as [batch, heads, sequence, head_dim]. The form decides which of the three
    are views of the output and which are copies.
    """
    tape = ctx.tape
    tensor = linear_tensors(attention.tensors)[0]
    batch, sequence, head_dim = ctx.batch, ctx.sequence, attention.head_dim
    heads, kv_heads = ceil_div(attention.heads, ctx.tp), _kv_heads(ctx, attention)
    qkv = linear(tape, x, ctx.weights(tensor, attention.qkv_bias), tensor.name)
    if attention.clip_qkv:
        qkv = clamp(tape, qkv, 2)
    q_shape, kv_shape = (batch, heads, sequence, head_dim), (batch, kv_heads, sequence, head_dim)
    if attention.fused_qkv == "index":
        return _split_falcon(ctx, attention, qkv)
    if attention.fused_qkv == "slices":
        q, k, v = slices(tape, qkv, q_shape, kv_shape, kv_shape)
    else:
        if attention.fused_qkv == "heads":  # head by head: the joined gradient is not in the order of the matrix
            qkv = head_view(tape, qkv, qkv.shape)
        q, k, v = tape.views(qkv, q_shape, kv_shape, kv_shape)
        if attention.fused_qkv == "shards":  # reshape merges heads of four slices, which copies each of q, k, v
            ctx.attention_locals.append(qkv)
            q, k, v = (copy(tape, part, "reshape") for part in (q, k, v))
    return normalise(ctx, attention.query_norm, q, "qk_norm"), normalise(ctx, attention.key_norm, k, "qk_norm"), v


def _split_falcon(ctx: Context, attention: Attention, qkv: Value) -> Heads:
    """Split Falcon's fused projection: q is a slice; k and v are picked with an index list, which copies them.

    ``qkv``: [tokens, (heads + 2 * kv_heads) * head_dim]. Falcon 40B copies k and v again, to q's number of heads.
    Source: modeling_falcon.py, FalconAttention._split_heads.
    """
    tape = ctx.tape
    batch, sequence, head_dim = ctx.batch, ctx.sequence, attention.head_dim
    heads, kv_heads = ceil_div(attention.heads, ctx.tp), _kv_heads(ctx, attention)
    ctx.attention_locals.append(qkv)
    q = slices(tape, qkv, (batch, heads, sequence, head_dim))[0]
    indices = tape.new((1,), "int64", "head index")
    k = index(tape, qkv, indices, (batch, kv_heads, sequence, head_dim), "k heads")
    v = index(tape, qkv, indices, (batch, kv_heads, sequence, head_dim), "v heads")
    if isinstance(attention, ExpandedFalconAttention):  # flatten(2, 3) of the slice, and of k and v broadcast to it
        if kv_heads > 1:
            q = copy(tape, q, "q heads")
        k, v = repeat_kv(tape, k, heads), repeat_kv(tape, v, heads)
    return q, k, v


def _rotate_in_place(ctx: Context, attention: Attention, q: Value, k: Value) -> tuple[Value, Value]:
    """Rotate q and k in place, as Liger's LigerRopeFunction does: no new tensor, and backward rotates the gradients in
    place.

    Parts of a fused projection are copied first. Gradients of kernels that return heads before tokens are copied, too.
    """
    tape, copies = ctx.tape, not keeps_strides(ctx, attention)
    if attention.fused_qkv:
        q, k = copy(tape, q, "contiguous"), copy(tape, k, "contiguous")
    return _same_storage(tape, q, copies=copies), _same_storage(tape, k, copies=copies)


def _same_storage(tape: Tape, x: Value, *, copies: bool) -> Value:
    """Return ``x`` rotated in its own storage. ``copies``: backward first makes the gradient contiguous."""
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, "contiguous gradient" if copies else GRAD_UNCHANGED)


def _encoder_output(ctx: Context) -> tuple[Value, int]:
    """Return the encoder's output [batch * encoded, hidden] and its tokens per sequence.

    All decoder layers read one value, so that its gradients add up in one buffer.
    """
    setting = ctx.setting
    encoded_tokens = Dim(setting.encoder_length, "E")
    if ctx.encoder_output is None:
        shape = (Dim(setting.batch * setting.encoder_length, "E"), ctx.hidden)
        dtype = setting.encoder_output_dtype or setting.residual_dtype or setting.param_dtype
        ctx.encoder_output = shared(
            ctx.tape, shape, dtype, needs_grad=setting.encoder_output_grad, starts=setting.starts_shared_gradients
        )
    return ctx.encoder_output, encoded_tokens
