"""Multi-latent attention under Megatron (DeepSeek V2/V3).

Source: Megatron-core ``transformer/multi_latent_attention.py`` (MLASelfAttention.get_query_key_value_tensors),
``fusions/fused_mla_yarn_rope_apply.py``. The input norm is a module of its own; the norms of the compressed queries and
keys are computed by the up-projections that follow them.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import GRAD_UNCHANGED, Gradient, cat, operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.megatron.attention import attention_dropout, rotary
from memcheck.frameworks.megatron.core_attention import Kernel, contiguous, core_attention
from memcheck.frameworks.megatron.linear import (
    Projection,
    column,
    gather_sequence,
    projection,
    replicated,
    row,
    scatters,
    uses_te,
)
from memcheck.frameworks.megatron.recompute import Discarded, checkpoint
from memcheck.models.types import LatentAttention, Norm


def latent_attention(
    ctx: Context, attention: LatentAttention, x: Value, *, recompute: bool, up_proj: bool
) -> tuple[Value, Projection]:
    """Compute multi-latent attention [tokens, hidden], and return its output projection for the bias that is added
    later.

    ``x``: the normalised hidden states. ``recompute``: selective recompute runs the core attention again
    (``core_attn``). ``up_proj``: it runs the up projections again (``mla_up_proj``).
    """
    tape = ctx.tape
    prefix = "self_attention."
    heads = attention.heads // ctx.tp
    q_dim = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    compressed = x
    if attention.q_lora_rank:
        compressed = replicated(
            ctx,
            x,
            projection(ctx, prefix + "linear_q_down_proj", attention.q_lora_rank, ctx.hidden),
            "linear_q_down_proj",
        )
        q_up = projection(ctx, prefix + "linear_q_up_proj", heads * q_dim, attention.q_lora_rank)
        q_norm: Norm | None = Norm("rmsnorm", attention.q_lora_rank)
    else:
        q_up, q_norm = projection(ctx, prefix + "linear_q_proj", heads * q_dim, ctx.hidden), None
    down = projection(
        ctx, prefix + "linear_kv_down_proj", attention.kv_lora_rank + attention.qk_rope_head_dim, ctx.hidden
    )
    combined = replicated(ctx, x, down, "linear_kv_down_proj")
    del x
    rows = combined.shape[0]
    kv, k_rotary = tape.views(combined, (rows, attention.kv_lora_rank), (rows, attention.qk_rope_head_dim))
    del combined
    if scatters(ctx):
        k_rotary = gather_sequence(ctx, k_rotary, "gather k_pos_emb")
    kv_up = projection(
        ctx,
        prefix + "linear_kv_up_proj",
        heads * (attention.qk_nope_head_dim + attention.v_head_dim),
        attention.kv_lora_rank,
    )

    def up(ctx: Context, t: tuple[Value, ...]) -> tuple[Value, ...]:
        q = column(ctx, t[0], q_up, "linear_q_up_proj", q_norm)
        both = column(ctx, t[1], kv_up, "linear_kv_up_proj", Norm("rmsnorm", attention.kv_lora_rank))
        return _rotate(ctx, attention, heads, q, both, t[2])

    dropped = Discarded(ctx) if up_proj else None
    inputs = (compressed, kv, k_rotary)
    q, key, value = dropped.run(up, inputs) if dropped is not None else up(ctx, inputs)
    forward_locals = compressed, kv  # variables of forward, to its end, as q, k and v are
    del compressed, kv, k_rotary, inputs
    kernel = Kernel(
        heads=heads,
        kv_heads=heads,
        qk_dim=q_dim,
        v_dim=attention.v_head_dim,
        packed=False,
        dropout=attention_dropout(ctx, attention.dropout),
    )
    if recompute:
        out = checkpoint(ctx, lambda c, t: core_attention(c, kernel, t[0], t[1], t[2]), (q, key, value))
    else:
        out = core_attention(ctx, kernel, q, key, value)
    if dropped is not None:
        out = dropped.discard(out)
    proj = projection(
        ctx, prefix + "linear_proj", ctx.hidden, heads * attention.v_head_dim, bias=attention.bias, adds=False
    )
    out = row(ctx, out, proj, "linear_proj", keeps_input=True)
    del forward_locals
    return out, proj


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
    if uses_te(ctx.setting) and bool(ctx.setting.option("apply_rope_fusion", True)):
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
    if carrier.origin is not None:
        carrier.origin.view_gradients = []  # type: ignore[union-attr]

    def pass_on(grad: Storage) -> list[Storage | None]:
        return [grad]

    key = tape.record(Value(key_storage, key_shape, dtype), (carrier,), pass_on)
    value = tape.record(Value(value_storage, value_shape, dtype), (carrier,), pass_on)
    return key, value
