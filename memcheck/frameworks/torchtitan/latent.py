"""DeepSeek V3's latent attention in torchtitan (models/deepseek_v3/model.py)."""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear, rotate_complex
from memcheck.autograd.modules import enter_tensor_parallel, fused_norm, leave_tensor_parallel
from memcheck.autograd.operator import cat, operator
from memcheck.autograd.tensor import Value, ceil_div
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import LatentAttention, Norm, ParameterTensor


def latent_attention(ctx: Context, attention: LatentAttention, x: Value) -> Value:
    """Run multi-head latent attention as torchtitan writes it, ``x``: [tokens, hidden]; so is what is returned.

    Unlike in transformers, a norm is one kernel, ``cat`` assembles the key, and flash attention takes heads of unequal
    width. Source: torchtitan models/deepseek_v3/model.py.
    """
    tape = ctx.tape
    tensors = {tensor.name.split(".")[-2]: tensor for tensor in linear_tensors(attention.tensors)}
    tokens = ctx.tokens
    heads = ceil_div(attention.heads, ctx.tp)
    nope, rope, v_dim = attention.qk_nope_head_dim, attention.qk_rope_head_dim, attention.v_head_dim
    x = enter_tensor_parallel(ctx, x)
    q = _queries(ctx, attention, tensors, x).view(tokens, heads, nope + rope)
    q_pass, q_rot = tape.views(q, (tokens, heads, nope), (tokens, heads, rope))
    tensor = tensors["kv_a_proj_with_mqa"]
    compressed = linear(tape, x, ctx.replicated(tensor, attention.bias), tensor.name)
    latent, k_rot = tape.views(compressed, (tokens, attention.kv_lora_rank), (tokens, 1, rope))
    table_rows = tape.new((tokens, rope), "fp32", "rope rows (complex)")
    q_rotated, k_rotated = rotate_complex(tape, q_rot, k_rot, table_rows)
    query = cat(tape, (q_pass, q_rotated), (tokens, heads, nope + rope), "cat queries")
    latent = _norm(ctx, attention.kv_lora_rank, latent, "kv_norm")
    tensor = tensors["kv_b_proj"]
    expanded = linear(tape, latent, ctx.weights(tensor, bias=False), tensor.name).view(tokens, heads, nope + v_dim)
    k_pass, value = tape.views(expanded, (tokens, heads, nope), (tokens, heads, v_dim))
    key = _cat_key(ctx, k_pass, k_rotated, (tokens, heads, nope + rope))
    out = kernels.flash(tape, query, key, value, v_dim, label="varlen attention", ring=ctx.setting.context_parallel)
    tensor = tensors["o_proj"]
    result = linear(tape, out.view(tokens, heads * v_dim), ctx.weights(tensor, attention.bias), tensor.name)
    return leave_tensor_parallel(ctx, result)


def _queries(ctx: Context, attention: LatentAttention, tensors: dict[str, ParameterTensor], x: Value) -> Value:
    """Compute the queries [tokens, heads * head_dim]: one matrix, or a down projection, a norm and an up projection."""
    tape = ctx.tape
    if attention.q_lora_rank is None:
        return linear(tape, x, ctx.weights(tensors["q_proj"], bias=False), tensors["q_proj"].name)
    latent = linear(tape, x, ctx.replicated(tensors["q_a_proj"], attention.bias), tensors["q_a_proj"].name)
    latent = _norm(ctx, attention.q_lora_rank, latent, "q_norm")
    return linear(tape, latent, ctx.weights(tensors["q_b_proj"], bias=False), tensors["q_b_proj"].name)


def _norm(ctx: Context, size: int, x: Value, name: str) -> Value:
    """Apply a fused RMSNorm over ``size`` channels."""
    weight, bias = ctx.norm_weight(Norm("rmsnorm", size), name)
    return fused_norm(ctx.tape, x, weight, bias, "rmsnorm")


def _cat_key(ctx: Context, k_pass: Value, k_rotated: Value, shape: tuple[int, ...]) -> Value:
    """Concatenate each head's key, ``cat([k_nope, k_pe.expand(...)])``: [tokens, heads, width], which is ``shape``.

    ``k_pass``: without rotary embedding, per head. ``k_rotated``: with it, shared by all heads, so that its gradient is
    a sum over heads.
    """
    tape = ctx.tape
    expanded = Value(k_rotated.storage, (*shape[:-1], k_rotated.shape[-1]), k_rotated.dtype)
    expanded = operator(tape, expanded, k_rotated, "sum over heads")
    return cat(tape, (k_pass, expanded), shape, "cat keys")
