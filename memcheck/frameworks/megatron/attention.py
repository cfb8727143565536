"""Megatron's self-attention: fused qkv, rotary embedding, kernel, projection.

Source: Megatron-core ``transformer/attention.py`` (SelfAttention.get_query_key_value_tensors, Attention.forward),
``models/common/embeddings/rope_utils.py``; mcore-bridge 1.2 ``model/modules/gated_self_attention.py`` (a query and its
gate lie side by side, head by head); TransformerEngine ``pytorch/attention/rope.py``.

Multi-latent attention under Megatron (DeepSeek V2/V3).

Source: Megatron-core ``transformer/multi_latent_attention.py`` (MLASelfAttention.get_query_key_value_tensors),
``fusions/fused_mla_yarn_rope_apply.py``. The input norm is a module of its own; the norms of the compressed queries and
keys are computed by the up-projections that follow them.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import GRAD_UNCHANGED, Gradient, cat, copy, operator
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div
from memcheck.frameworks.megatron.bridge_adapters import is_bridged
from memcheck.frameworks.megatron.core_attention import Kernel, contiguous, core_attention
from memcheck.frameworks.megatron.linear import (
    Projection,
    column,
    gather_sequence,
    is_sequence_parallel,
    norm,
    projection,
    replicated,
    row,
    uses_te,
)
from memcheck.frameworks.megatron.recompute import Discarded, Outputs, checkpoint
from memcheck.models.types import Attention, LatentAttention, Norm


def self_attention(
    ctx: Context, attention: Attention, x: Value, spec: Norm | None, *, recompute: bool
) -> tuple[Value, Projection]:
    """Compute self-attention [tokens, hidden], and return its output projection for the bias that is added later.

    ``x``: [tokens, hidden]. ``spec``: the input norm, where the qkv projection applies it (TE). ``recompute``: whether
    selective recompute runs the core attention again (``core_attn``). The steps are those of ``Attention.forward``.
    """
    kernel = _local_kernel(ctx, attention)
    query, key, value, gate = _query_key_value(ctx, attention, kernel, x, spec)
    qkv_output = query, key  # Attention.forward's variable `qkv_output`, which lives until forward returns
    if attention.rotary_dim > 0:
        query, key = rotary(ctx, query, attention.rotary_dim), rotary(ctx, key, attention.rotary_dim)
    out = _core_attention(ctx, kernel, query, key, value, recompute=recompute)
    if gate is not None:
        out = _apply_output_gate(ctx, out, gate)
    output_projection = projection(
        ctx,
        "self_attention.linear_proj",
        ctx.hidden,
        ceil_div(attention.heads * attention.head_dim, ctx.tp),
        bias=attention.out_bias,
        adds=False,
    )
    out = row(ctx, out, output_projection, "linear_proj", keeps_input=True)
    del qkv_output  # forward returns
    return out, output_projection


def _local_kernel(ctx: Context, attention: Attention) -> Kernel:
    """Return the dimensions of self-attention on this tensor rank, which has at least one key-value head."""
    heads, kv_heads = ceil_div(attention.heads, ctx.tp), max(1, attention.kv_heads // ctx.tp)
    return Kernel(
        heads=heads,
        kv_heads=kv_heads,
        qk_dim=attention.head_dim,
        v_dim=attention.head_dim,
        # nothing has copied q and k since the split
        qkv_is_one_tensor=attention.rotary_dim == 0 and heads == kv_heads and attention.query_norm is None,
        dropout=attention_dropout(ctx, attention.dropout),
    )


def _core_attention(ctx: Context, kernel: Kernel, query: Value, key: Value, value: Value, *, recompute: bool) -> Value:
    """Compute attention [tokens, heads * v_dim], as a checkpoint of its own if ``recompute`` (``core_attn``)."""
    if recompute:
        return checkpoint(ctx, lambda ctx, qkv: core_attention(ctx, kernel, *qkv), (query, key, value))
    return core_attention(ctx, kernel, query, key, value)


def _query_key_value(
    ctx: Context, attention: Attention, kernel: Kernel, x: Value, spec: Norm | None
) -> tuple[Value, Value, Value, Value | None]:
    """Compute query, key, value and output gate, each [tokens, heads * head_dim] of this rank.

    ``x``: [tokens, hidden]. ``spec``: the norm that the projection applies first; None: none. The gate is None in
    models without one. Source: SelfAttention.get_query_key_value_tensors.
    """
    query_heads = 2 * attention.heads if attention.output_gate else attention.heads  # a gate for each query
    qkv_width = (query_heads + 2 * attention.kv_heads) * attention.head_dim
    qkv_projection = projection(
        ctx, "self_attention.linear_qkv", ceil_div(qkv_width, ctx.tp), ctx.hidden, bias=attention.qkv_bias
    )
    qkv = column(ctx, x, qkv_projection, "linear_qkv", spec)
    if attention.kv_heads < ctx.tp:  # several tensor ranks share a key-value head
        qkv = _gather_qkv(ctx.tape, qkv, qkv_width)
    query, key, value, gate = _split_qkv(ctx, attention, kernel, qkv)
    query = _head_norm(ctx, attention.query_norm, query, "q_layernorm")
    key = _head_norm(ctx, attention.key_norm, key, "k_layernorm")
    return query, key, value, gate


def _split_qkv(
    ctx: Context, attention: Attention, kernel: Kernel, qkv: Value
) -> tuple[Value, Value, Value, Value | None]:
    """Split the joint projection ``qkv`` [tokens, columns] into query, key, value and output gate.

    They are views, except where a reshape has to copy. The gate (Qwen 3 Next's ``attention_output_gate``) is None in
    models without one.
    """
    tape, rows = ctx.tape, qkv.shape[0]
    query_shape, kv_shape = (rows, kernel.heads * kernel.qk_dim), (rows, kernel.kv_heads * kernel.qk_dim)
    copies_query = kernel.heads > kernel.kv_heads > 1  # in qkv, the query heads of two groups are not adjacent
    if not attention.output_gate:
        query, key, value = tape.views(qkv, query_shape, kv_shape, kv_shape)
        return copy(tape, query, "query reshape") if copies_query else query, key, value, None
    if is_bridged(ctx.setting):
        query_and_gate, key, value = tape.views(qkv, (rows, 2 * query_shape[1]), kv_shape, kv_shape)
        if kernel.kv_heads > 1:
            query_and_gate = copy(tape, query_and_gate, "query reshape")
        query, gate = _split_interleaved(tape, query_and_gate)
        return copy(tape, query, "contiguous q"), key, value, gate
    query, gate, key, value = tape.views(qkv, query_shape, query_shape, kv_shape, kv_shape)
    if copies_query:
        query, gate = copy(tape, query, "query reshape"), copy(tape, gate, "gate reshape")
    return query, key, value, gate


def _split_interleaved(tape: Tape, x: Value) -> tuple[Value, Value]:
    """Split ``x`` [tokens, 2 * width] into two strided views [tokens, width]; each gradient has the full size of x.

    ``x[:, :, ::2], x[:, :, 1::2]`` in mcore-bridge's GatedSelfAttention.
    """
    shape, dtype = x.shape, x.dtype
    half = (shape[0], shape[1] // 2)

    def part() -> Value:
        return operator(tape, Value(x.storage, half, dtype), x, (shape, dtype, "slice backward"))

    return part(), part()


def _head_norm(ctx: Context, spec: Norm | None, x: Value, name: str) -> Value:
    """Normalise each head of ``x``; return x unchanged without a norm.

    TE's norms (``ops/basic/rmsnorm.py``, ``layer_norm.py``) save a contiguous copy of a view.
    """
    if spec is None:
        return x
    if uses_te(ctx.setting):
        x = contiguous(ctx.tape, x, "contiguous " + name)
    if x.shape[1] % spec.size:  # over all heads at once
        return norm(ctx, spec, x, name)
    return norm(ctx, spec, x.view(x.numel // spec.size, spec.size), name).view(*x.shape)


def attention_dropout(ctx: Context, p: float) -> float:
    """Return the dropout probability of attention: the plan's ``attention_dropout``, else ``p``, the model's."""
    stated = ctx.setting.option("attention_dropout")
    return p if stated is None else float(str(stated))


def hidden_dropout(ctx: Context, p: float) -> float:
    """Return the dropout probability of the residual: the plan's ``hidden_dropout``, else ``p``, the model's."""
    stated = ctx.setting.option("hidden_dropout")
    return p if stated is None else float(str(stated))


def _gather_qkv(tape: Tape, mixed: Value, width: int) -> Value:
    """All-gather the projected q, k and v if there are fewer key-value heads than tensor ranks.

    ``mixed``: this rank's columns, [tokens, width / tp]. Returns [tokens, width], of which each rank then uses a slice.
    Backward pads the slice's gradient with zeros to ``width`` before it is reduce-scattered.
    """
    shape, dtype = mixed.shape, mixed.dtype
    full_shape = (shape[0], width)
    out = tape.value(full_shape, dtype, "all-gather qkv")
    return operator(tape, out, mixed, "all-gather qkv backward", temporaries=[(full_shape, dtype, "slice backward")])


def rotary(ctx: Context, x: Value, rotary_dim: int) -> Value:
    """Rotate ``x`` by its positions: one fused kernel, or operators that save cos and sin in each layer.

    ``apply_rope_fusion`` is on by default where TransformerEngine is.
    """
    tape = ctx.tape
    if uses_te(ctx.setting) and bool(ctx.setting.option("apply_rope_fusion", default=True)):
        return operator(tape, tape.value(x.shape, x.dtype, "fused rotary embedding"), x, "fused rotary backward")
    return _unfused_rotary(ctx, x, rotary_dim)


def _unfused_rotary(ctx: Context, x: Value, rotary_dim: int) -> Value:
    """Rotate ``x`` by separate operators: ``cat((t * cos) + (rotate_half(t) * sin), t_pass)``.

    Only the first ``rotary_dim`` columns of a head are rotated (``_apply_rotary_pos_emb_bshd``). Every temporary is
    counted with x's full shape, an upper bound; cos and sin [sequence, rotary_dim] are saved.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    table = (ctx.sequence, rotary_dim)
    needs_grad = x.needs_grad
    cos, sin = tape.new(table, dtype, "cos"), tape.new(table, dtype, "sin")
    with_cos = tape.new(shape, dtype, "t * cos")
    rotated_half = tape.new(shape, dtype, "rotate half")
    with_sin = tape.new(shape, dtype, "rotate half * sin")
    del rotated_half
    summed = tape.new(shape, dtype, "rotated")
    del with_cos, with_sin
    out = tape.value(shape, dtype, "cat rotary")
    del summed
    kept = (cos, sin)
    del cos, sin

    def run(grad: Storage) -> list[Storage | None]:
        """Backward of the unfused rotation: both products, the cat and the slice of the rotated half."""
        sin_gradient = tape.new(shape, dtype, "mul backward")
        cat_gradient = tape.new(shape, dtype, "cat backward")
        del sin_gradient
        cos_gradient = tape.new(shape, dtype, "mul backward")
        dx = tape.new(shape, dtype, "slice backward")
        del cat_gradient, cos_gradient
        return [dx if needs_grad else None]

    return tape.record(out, (x,), run, saves=kept)


def _apply_output_gate(ctx: Context, out: Value, gate: Value) -> Value:
    """Multiply ``out`` by ``sigmoid(gate.float())`` in one compiled kernel that saves both inputs
    (``_apply_output_gate``).
    """
    tape = ctx.tape
    return operator(
        tape,
        tape.value(out.shape, out.dtype, "output gate"),
        (out, gate),
        ["output gate backward", (out.shape, out.dtype, "output gate backward")],
        saves=(out, gate),
    )


def latent_attention(
    ctx: Context, attention: LatentAttention, x: Value, *, recompute: bool, up_proj: bool
) -> tuple[Value, Projection]:
    """Compute multi-latent attention [tokens, hidden], and return its output projection for the bias that is added
    later.

    ``x``: the normalised hidden states. ``recompute``: selective recompute runs the core attention again
    (``core_attn``). ``up_proj``: it runs the up projections again (``mla_up_proj``).
    """
    heads = attention.heads // ctx.tp
    inputs = _compress(ctx, attention, x)
    project_up = _up_projections(ctx, attention, heads)
    if up_proj:
        discarded = Discarded(ctx)
        query, key, value = discarded.run(project_up, inputs)
    else:
        query, key, value = project_up(ctx, inputs)
    forward_locals = inputs[:2]  # Attention.forward's variables `q_compressed` and `kv_compressed`, until it returns
    del inputs  # the rotary part of the keys dies here
    kernel = Kernel(
        heads=heads,
        kv_heads=heads,
        qk_dim=attention.qk_nope_head_dim + attention.qk_rope_head_dim,
        v_dim=attention.v_head_dim,
        qkv_is_one_tensor=False,
        dropout=attention_dropout(ctx, attention.dropout),
    )
    out = _core_attention(ctx, kernel, query, key, value, recompute=recompute)
    if up_proj:
        out = discarded.discard(out)
    output_projection = projection(
        ctx,
        "self_attention.linear_proj",
        ctx.hidden,
        heads * attention.v_head_dim,
        bias=attention.bias,
        adds=False,
    )
    out = row(ctx, out, output_projection, "linear_proj", keeps_input=True)
    del forward_locals  # forward returns
    return out, output_projection


def _compress(ctx: Context, attention: LatentAttention, x: Value) -> tuple[Value, Value, Value]:
    """Project hidden states ``x`` down to compressed queries, compressed keys and values, and the keys' rotary part.

    Shapes: [tokens, q_lora_rank], [tokens, kv_lora_rank], [tokens, qk_rope_head_dim]. Every tensor rank computes all of
    them, for its own tokens. Without ``q_lora_rank`` the queries are not compressed: ``x`` itself is returned.
    """
    compressed_query = x
    if attention.q_lora_rank:
        q_down = projection(ctx, "self_attention.linear_q_down_proj", attention.q_lora_rank, ctx.hidden)
        compressed_query = replicated(ctx, x, q_down, "linear_q_down_proj")
    kv_columns = attention.kv_lora_rank + attention.qk_rope_head_dim
    kv_down = projection(ctx, "self_attention.linear_kv_down_proj", kv_columns, ctx.hidden)
    combined = replicated(ctx, x, kv_down, "linear_kv_down_proj")
    rows = combined.shape[0]
    compressed_kv, k_rotary = ctx.tape.views(
        combined, (rows, attention.kv_lora_rank), (rows, attention.qk_rope_head_dim)
    )
    if is_sequence_parallel(ctx):
        k_rotary = gather_sequence(ctx, k_rotary, "gather k_pos_emb")
    return compressed_query, compressed_kv, k_rotary


def _up_projections(ctx: Context, attention: LatentAttention, heads: int) -> Outputs:
    """Register the up projections of ``heads`` local heads, and return the function that applies them.

    It takes what :func:`_compress` returns, and returns query, key and value, each [tokens, heads * head width].
    Selective recompute runs it a second time with the same weights.
    """
    q_columns = heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim)
    kv_columns = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    if attention.q_lora_rank:
        q_up = projection(ctx, "self_attention.linear_q_up_proj", q_columns, attention.q_lora_rank)
        q_norm: Norm | None = Norm("rmsnorm", attention.q_lora_rank)
    else:
        q_up, q_norm = projection(ctx, "self_attention.linear_q_proj", q_columns, ctx.hidden), None
    kv_up = projection(ctx, "self_attention.linear_kv_up_proj", kv_columns, attention.kv_lora_rank)
    kv_norm = Norm("rmsnorm", attention.kv_lora_rank)

    def project_up(ctx: Context, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """Normalise and project up, then rotate (``qkv_up_proj_and_rope_apply``)."""
        compressed_query, compressed_kv, k_rotary = inputs
        query = column(ctx, compressed_query, q_up, "linear_q_up_proj", q_norm)
        key_value = column(ctx, compressed_kv, kv_up, "linear_kv_up_proj", kv_norm)
        return _rotate(ctx, attention, heads, query, key_value, k_rotary)

    return project_up


def _rotate(
    ctx: Context, attention: LatentAttention, heads: int, query_states: Value, kv: Value, k_rotary: Value
) -> tuple[Value, Value, Value]:
    """Apply rotary embeddings in multi-latent attention; return query, key and value, each [tokens, heads * head
    width].

    ``heads``: on this rank. ``query_states``: [tokens, heads * (nope + rope dims)]. ``kv``: the output of the kv up
    projection. ``k_rotary``: the rotary part of the keys, which all heads share. TE's fused kernel rotates queries in
    place; otherwise each step is an operator.
    """
    tape = ctx.tape
    rows = query_states.shape[0]
    key_shape = (rows, heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim))
    value_shape = (rows, heads * attention.v_head_dim)
    if uses_te(ctx.setting) and bool(ctx.setting.option("apply_rope_fusion", default=True)):
        query_states = operator(
            tape, Value(query_states.storage, query_states.shape, query_states.dtype), query_states, GRAD_UNCHANGED
        )
        return (query_states, *_fused_key_value(ctx, kv, k_rotary, key_shape, value_shape))
    q_plain, q_part = tape.views(
        query_states, (rows, heads * attention.qk_nope_head_dim), (rows, heads * attention.qk_rope_head_dim)
    )
    k_plain, value = tape.views(kv, (rows, heads * attention.qk_nope_head_dim), value_shape)
    shape = query_states.shape
    del query_states, kv
    q_part = rotary(ctx, q_part, attention.qk_rope_head_dim)
    k_rotary = rotary(ctx, k_rotary, attention.qk_rope_head_dim)
    query = cat(tape, (q_plain, q_part), shape, "cat query")
    key = cat(tape, (k_plain, k_rotary), key_shape, "cat key")
    return query, key, contiguous(tape, value, "contiguous v")


def _fused_key_value(
    ctx: Context, kv: Value, k_rotary: Value, key_shape: tuple[int, ...], value_shape: tuple[int, ...]
) -> tuple[Value, Value]:
    """Run ``fused_apply_mla_rope_for_kv``: return new keys and values of the shapes given, saving cos and sin alone.

    ``kv``: the output of the kv up projection. ``k_rotary``: the keys' rotary part, which all heads share. Its backward
    runs once, when both outputs have their gradients.
    """
    tape, dtype = ctx.tape, kv.dtype
    key_storage, value_storage = tape.new(key_shape, dtype, "key"), tape.new(value_shape, dtype, "value")
    gradients: list[Gradient] = ["d_kv", (k_rotary.shape, dtype, "d_k_pos_emb")]
    carrier = operator(tape, Value(None, (), dtype), (kv, k_rotary), gradients)
    if carrier.needs_grad:
        # the node waits for the gradients of both outputs
        carrier.origin.view_gradients = []  # type: ignore[union-attr]

    def pass_on(grad: Storage) -> list[Storage | None]:
        return [grad]

    key = tape.record(Value(key_storage, key_shape, dtype), (carrier,), pass_on)
    value = tape.record(Value(value_storage, value_shape, dtype), (carrier,), pass_on)
    return key, value
