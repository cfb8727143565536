"""Megatron's self-attention: fused qkv, rotary embedding, kernel, projection.

Source: Megatron-core ``transformer/attention.py`` (SelfAttention.get_query_key_value_tensors, Attention.forward),
``models/common/embeddings/rope_utils.py``; mcore-bridge 1.2 ``model/modules/gated_self_attention.py`` (a query and its
gate lie side by side, head by head); TransformerEngine ``pytorch/attention/rope.py``.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import copy, operator
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div
from memcheck.frameworks.megatron.bridge_adapters import is_bridged
from memcheck.frameworks.megatron.core_attention import Kernel, contiguous, core_attention
from memcheck.frameworks.megatron.linear import Projection, column, norm, projection, row, uses_te
from memcheck.frameworks.megatron.recompute import checkpoint
from memcheck.models.types import Attention, Norm


def self_attention(
    ctx: Context, attention: Attention, x: Value, spec: Norm | None, *, recompute: bool
) -> tuple[Value, Projection]:
    """Compute self-attention [tokens, hidden], and return its output projection for the bias that is added later.

    ``spec``: the input norm, where the qkv projection applies it (TE). ``recompute``: whether selective recompute runs
    the core attention again (``core_attn``).
    """
    tape = ctx.tape
    local_heads = ceil_div(attention.heads, ctx.tp)
    local_kv_heads = max(1, attention.kv_heads // ctx.tp)
    qkv_width = (attention.heads * (2 if attention.output_gate else 1) + 2 * attention.kv_heads) * attention.head_dim
    qkv_projection = projection(
        ctx, "self_attention.linear_qkv", ceil_div(qkv_width, ctx.tp), ctx.hidden, bias=attention.qkv_bias
    )
    qkv = column(ctx, x, qkv_projection, "linear_qkv", spec)
    del x
    if attention.kv_heads < ctx.tp:  # several tensor ranks share a key-value head
        qkv = _gather_qkv(tape, qkv, qkv_width)
    # split into queries, gates, keys and values: views, of which some are copied
    rows = qkv.shape[0]
    gates: tuple[Value, ...] = ()
    kv_shapes = (rows, local_kv_heads * attention.head_dim), (rows, local_kv_heads * attention.head_dim)
    if attention.output_gate and is_bridged(ctx.setting):
        q, key, value = tape.views(qkv, (rows, 2 * local_heads * attention.head_dim), *kv_shapes)
        q, gate = _split_interleaved(tape, copy(tape, q, "query reshape") if local_kv_heads > 1 else q)
        q, gates = copy(tape, q, "contiguous q"), (gate,)
    else:
        query_shape = (rows, local_heads * attention.head_dim)
        q, *gate_views, key, value = tape.views(
            qkv, query_shape, *([query_shape] if attention.output_gate else []), *kv_shapes
        )
        gates = tuple(gate_views)
        if local_heads > local_kv_heads > 1:  # heads of different groups are not adjacent
            q = copy(tape, q, "query reshape")
            gates = tuple([copy(tape, t, "gate reshape") for t in gates])
    del qkv
    rotates = attention.rotary_dim > 0
    q = _head_norm(ctx, attention.query_norm, q, "q_layernorm")
    key = _head_norm(ctx, attention.key_norm, key, "k_layernorm")
    qkv_output = q, key  # Attention.forward's qkv_output, to its end, as its query, key and value are
    if rotates:
        q, key = rotary(ctx, q, attention.rotary_dim), rotary(ctx, key, attention.rotary_dim)
    # q, k and v are still views of one tensor, so that the kernel writes their gradients into one
    packed = not rotates and local_heads == local_kv_heads and attention.query_norm is None
    kernel = Kernel(
        heads=local_heads,
        kv_heads=local_kv_heads,
        qk_dim=attention.head_dim,
        v_dim=attention.head_dim,
        packed=packed,
        dropout=attention_dropout(ctx, attention.dropout),
    )
    if recompute:
        out = checkpoint(ctx, lambda c, t: core_attention(c, kernel, t[0], t[1], t[2]), (q, key, value))
    else:
        out = core_attention(ctx, kernel, q, key, value)
    for gate in gates:
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
    del qkv_output
    return out, output_projection


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
    if uses_te(ctx.setting) and bool(ctx.setting.option("apply_rope_fusion", True)):
        return operator(tape, tape.value(x.shape, x.dtype, "fused rotary embedding"), x, "fused rotary backward")
    return _unfused_rotary(ctx, x, rotary_dim)


def _unfused_rotary(ctx: Context, x: Value, rotary_dim: int) -> Value:
    """Rotate ``x`` by separate operators: ``cat((t * cos) + (rotate_half(t) * sin), t_pass)``.

    Only the first ``rotary_dim`` columns of a head are rotated (``_apply_rotary_pos_emb_bshd``). Every temporary is
    counted with x's full shape, an upper bound; cos and sin [sequence, rotary_dim] are saved.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    table = (ctx.sequence, rotary_dim)
    needs_grad = x.origin is not None
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
