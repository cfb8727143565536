"""Megatron's self-attention: fused qkv, rotary embedding, kernel, projection.

Source: Megatron-core ``transformer/attention.py`` (SelfAttention.get_query_key_value_tensors, Attention.forward),
``models/common/embeddings/rope_utils.py``; mcore-bridge 1.2 ``model/modules/gated_self_attention.py`` (a query and its
gate lie side by side, head by head); TransformerEngine ``pytorch/attention/rope.py``.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import copy
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.megatron.bridge_adapters import is_bridged
from memcheck.frameworks.megatron.core_attention import Kernel, contiguous, core_attention
from memcheck.frameworks.megatron.linear import Projection, column, norm, projection, row, uses_te
from memcheck.frameworks.megatron.recompute import checkpoint
from memcheck.models.types import Attention, Norm


def self_attention(
    ctx: Context, a: Attention, x: Value, spec: Norm | None, *, recompute: bool
) -> tuple[Value, Projection]:
    """Attention's output and its projection (whose bias the bias-dropout-add adds).

    ``spec``: the input norm, where the qkv projection does it (TE). ``recompute``: ``core_attn``.
    """
    tape = ctx.tape
    heads = -(-a.heads // ctx.tp)
    groups = max(1, a.kv_heads // ctx.tp)
    width = (a.heads * (2 if a.output_gate else 1) + 2 * a.kv_heads) * a.head_dim
    qkv_p = projection(ctx, "self_attention.linear_qkv", -(-width // ctx.tp), ctx.hidden, bias=a.qkv_bias)
    mixed = column(ctx, x, qkv_p, "linear_qkv", spec)
    del x
    if a.kv_heads < ctx.tp:
        mixed = _gather_heads(tape, mixed, width)
    rows = mixed.shape[0]
    gates: tuple[Value, ...] = ()
    sides = (rows, groups * a.head_dim), (rows, groups * a.head_dim)
    if a.output_gate and is_bridged(ctx.setting):
        q, key, value = tape.views(mixed, (rows, 2 * heads * a.head_dim), *sides)
        q, gate = _every_second(tape, copy(tape, q, "query reshape") if groups > 1 else q)
        q, gates = copy(tape, q, "contiguous q"), (gate,)
    else:
        each = (rows, heads * a.head_dim)
        q, *gates_, key, value = tape.views(mixed, each, *([each] if a.output_gate else []), *sides)
        gates = tuple(gates_)
        if heads > groups > 1:  # heads of different groups are not adjacent
            q = copy(tape, q, "query reshape")
            gates = tuple([copy(tape, t, "gate reshape") for t in gates])
    del mixed
    rotates = a.rotary_dim > 0
    q = _head_norm(ctx, a.query_norm, q, "q_layernorm")
    key = _head_norm(ctx, a.key_norm, key, "k_layernorm")
    held = q, key  # Attention.forward's qkv_output, to its end, as its query, key and value are
    if rotates:
        q, key = rotary(ctx, q, a.rotary_dim), rotary(ctx, key, a.rotary_dim)
    packed = not rotates and heads == groups and a.query_norm is None
    kernel = Kernel(
        heads=heads,
        kv_heads=groups,
        qk_dim=a.head_dim,
        v_dim=a.head_dim,
        packed=packed,
        dropout=attention_dropout(ctx, a.dropout),
    )
    if recompute:
        out = checkpoint(ctx, lambda c, t: core_attention(c, kernel, t[0], t[1], t[2]), (q, key, value))
    else:
        out = core_attention(ctx, kernel, q, key, value)
    for gate in gates:
        out = _gate(ctx, out, gate)
    proj = projection(
        ctx,
        "self_attention.linear_proj",
        ctx.hidden,
        -(-a.heads * a.head_dim // ctx.tp),
        bias=a.out_bias,
        adds=False,
    )
    out = row(ctx, out, proj, "linear_proj", keeps_input=True)
    del held
    return out, proj


def _every_second(tape: Tape, x: Value) -> tuple[Value, Value]:
    """``x[:, :, ::2], x[:, :, 1::2]`` (mcore-bridge, GatedSelfAttention): each one's gradient is of x's size."""
    shape, dtype = x.shape, x.dtype
    half = (shape[0], shape[1] // 2)

    def part() -> Value:
        return operator(tape, Value(x.storage, half, dtype), x, (shape, dtype, "slice backward"))

    return part(), part()


def _head_norm(ctx: Context, spec: Norm | None, x: Value, name: str) -> Value:
    """The norm of each head. TE's (``ops/basic/rmsnorm.py``, ``layer_norm.py``) keeps a contiguous copy of a view."""
    if spec is None:
        return x
    if uses_te(ctx.setting):
        x = contiguous(ctx.tape, x, "contiguous " + name)
    if x.shape[1] % spec.size:  # over all heads at once
        return norm(ctx, spec, x, name)
    return norm(ctx, spec, x.view(x.numel // spec.size, spec.size), name).view(*x.shape)


def attention_dropout(ctx: Context, p: float) -> float:
    """The model's probability unless the plan states ``attention_dropout``."""
    stated = ctx.setting.option("attention_dropout")
    return p if stated is None else float(str(stated))


def hidden_dropout(ctx: Context, p: float) -> float:
    """The model's probability unless the plan states ``hidden_dropout``."""
    stated = ctx.setting.option("hidden_dropout")
    return p if stated is None else float(str(stated))


def _gather_heads(tape: Tape, mixed: Value, width: int) -> Value:
    """Fewer key-value groups than tensor ranks: all ranks' qkv are gathered, each takes a slice of the whole."""
    shape, dtype = mixed.shape, mixed.dtype
    whole = (shape[0], width)
    out = tape.value(whole, dtype, "all-gather qkv")
    return operator(tape, out, mixed, "all-gather qkv backward", temporaries=[(whole, dtype, "slice backward")])


def rotary(ctx: Context, x: Value, rotary_dim: int) -> Value:
    """Rotates x: one kernel that keeps the frequencies, or operators that keep cos and sin per layer.

    ``apply_rope_fusion`` is on by default where TransformerEngine is.
    """
    tape = ctx.tape
    if uses_te(ctx.setting) and bool(ctx.setting.option("apply_rope_fusion", True)):
        return operator(tape, tape.value(x.shape, x.dtype, "fused rotary embedding"), x, "fused rotary backward")
    return _rotary_pieces(ctx, x, rotary_dim)


def _rotary_pieces(ctx: Context, x: Value, rotary_dim: int) -> Value:
    """``_apply_rotary_pos_emb_bshd``: (t * cos) + (rotate_half(t) * sin), then cat with what is not rotated."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    table = (ctx.sequence, rotary_dim)
    wants = x.origin is not None
    cos, sin = tape.new(table, dtype, "cos"), tape.new(table, dtype, "sin")
    with_cos = tape.new(shape, dtype, "t * cos")
    turned = tape.new(shape, dtype, "rotate half")
    with_sin = tape.new(shape, dtype, "rotate half * sin")
    del turned
    summed = tape.new(shape, dtype, "rotated")
    del with_cos, with_sin
    out = tape.value(shape, dtype, "cat rotary")
    del summed
    kept = (cos, sin)
    del cos, sin

    def run(grad: Storage) -> list[Storage | None]:
        through_sin = tape.new(shape, dtype, "mul backward")
        turned = tape.new(shape, dtype, "cat backward")
        del through_sin
        through_cos = tape.new(shape, dtype, "mul backward")
        total = tape.new(shape, dtype, "slice backward")
        del turned, through_cos
        return [total if wants else None]

    return tape.record(out, (x,), run, saves=kept)


def _gate(ctx: Context, out: Value, gate: Value) -> Value:
    """``_apply_output_gate`` under jit_fuser: out * sigmoid(gate.float()), keeps both."""
    tape = ctx.tape
    return operator(
        tape,
        tape.value(out.shape, out.dtype, "output gate"),
        (out, gate),
        ["output gate backward", (out.shape, out.dtype, "output gate backward")],
        saves=(out, gate),
    )
