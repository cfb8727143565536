"""Multi-head latent attention of DeepSeek V2 and V3 as transformers writes it.

Sources: transformers 5.23 models/deepseek_v2/modeling_deepseek_v2.py, models/deepseek_v3/modeling_deepseek_v3.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, cat, copy, mul, scale, unary
from memcheck.autograd.indexing import head_view
from memcheck.autograd.matrix import linear
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.parallel import enter_tensor_parallel, leave_tensor_parallel
from memcheck.autograd.rotary import rotate_complex, rotate_half
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.transformers.attend import attend
from memcheck.frameworks.transformers.attention import scale_positions
from memcheck.frameworks.transformers.kernel_choice import grouping_of, kernel_of
from memcheck.frameworks.transformers.rotary_apart import rotate_pairs
from memcheck.models.attention_types import (
    ComplexLatentAttention,
    GatedLatentAttention,
    Indexer,
    ScaledLatentAttention,
    UnturnedLatentAttention,
)
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, LatentAttention, Norm, ParameterTensor

Tensors = dict[str, ParameterTensor]


def latent_attention(ctx: Context, a: LatentAttention, x: Value, stream: str) -> Value:
    """q through its low-rank pair (or one matrix), k and v expanded from a shared latent, one shared rotary key."""
    tape = ctx.tape
    tensors = {t.name.split(".")[-2]: t for t in linear_tensors(a.tensors)}
    b, s = ctx.batch, ctx.sequence
    heads = -(-a.heads // ctx.tp)
    nope, rope, v_dim = a.qk_nope_head_dim, a.qk_rope_head_dim, a.v_head_dim
    x = enter_tensor_parallel(ctx, x)
    low = _low_queries(ctx, a, tensors, x)
    last = tensors["q_proj" if a.q_lora_rank is None else "q_b_proj"]
    made = linear(tape, low[0], ctx.weights(last, False), last.name)
    q = head_view(tape, made, (b, heads, s, nope + rope))
    del made
    if a.own is None:  # `q_resid` is a variable where an indexer reads it
        del low
    q_pass, q_rot = tape.views(q, (b, heads, s, nope), (b, heads, s, rope))
    if isinstance(a, ScaledLatentAttention):
        q_pass, q = scale(tape, q_pass, "query scale"), scale(tape, q_rot, "query scale")
        q_rot = q
    tensor = tensors["kv_a_proj_with_mqa"]
    compressed = linear(tape, x, ctx.replicated(tensor, a.bias), tensor.name)
    latent, k_rot = tape.views(compressed, (ctx.tokens, a.kv_lora_rank), (b, 1, s, rope))
    latent = _norm(ctx, a.kv_lora_rank, latent, "kv_a_layernorm")
    if isinstance(a, ScaledLatentAttention):
        latent = scale(tape, latent, "latent scale")
    query, k_turned, turns = q, k_rot, not isinstance(a, UnturnedLatentAttention)
    if turns:
        q_turned, k_turned = _rotary(tape, a, q_rot, k_rot, stream)
        query = cat(tape, (q_pass, q_turned), (b, heads, s, nope + rope), "cat queries")
    if a.scaled_queries:
        query = scale_positions(ctx, query)
    tensor = tensors["kv_b_proj"]
    expanded = head_view(
        tape, linear(tape, latent, ctx.weights(tensor, False), tensor.name), (b, heads, s, nope + v_dim)
    )
    k_pass, value = tape.views(expanded, (b, heads, s, nope), (b, heads, s, v_dim))
    del expanded
    key = assemble(tape, k_pass, k_turned, (b, heads, s, nope + rope))
    del k_pass
    grouping = grouping_of(a, heads)
    named = _choice(ctx, a, grouping, x)
    out = attend(ctx, grouping, query, key, value)
    if turns and v_dim == nope + rope and kernel_of(ctx, grouping) == "flash":
        # its output lies as the queries do, which a cat has put together head by head
        out = copy(tape, out, "contiguous")
    out = _opened(ctx, a, tensors, out, x)
    tensor = tensors["o_proj"]
    result = linear(tape, out.view(ctx.tokens, heads * v_dim), ctx.weights(tensor, a.bias), tensor.name)
    del named
    return leave_tensor_parallel(ctx, result)


def _opened(ctx: Context, a: LatentAttention, tensors: Tensors, out: Value, x: Value) -> Value:
    """The output times a gate of every head or element, which a matrix makes of the layer's input (Ling 3)."""
    tape = ctx.tape
    if isinstance(a, GatedLatentAttention):
        made = linear(tape, x, ctx.weights(tensors["g_proj"], False), "g_proj")
        opened = unary(tape, cast(tape, made, "fp32"), "sigmoid")
        opened = cast(tape, opened, out.dtype)
        return mul(tape, out, opened.view(*out.shape[:-1], 1) if opened.numel * out.shape[-1] == out.numel else opened)
    return out


def _choice(ctx: Context, a: LatentAttention, grouping: Attention, x: Value) -> list[Storage]:
    """What an indexer's choice leaves in variables of the module: indices, unless they are the model's, and masks."""
    named = []
    if a.own is None:
        return []
    if a.own.heads:
        found = _choose_keys(ctx, a, a.own, x)
        named += [] if a.own.passes else [found]
        del found
    return named + (_mask_of_choice(ctx, a.own) if kernel_of(ctx, grouping) == "eager" else [])


def _choose_keys(ctx: Context, a: LatentAttention, indexer: Indexer, x: Value) -> Storage:
    """DeepseekV32Indexer: scores of every head, token and key, summed over heads; only int32 indices leave it. They are
    fp32, but autocast's under autocast, which casts both factors of a product.

    No gradient reaches its parameters; what its graph saves dies when it returns. ``q_resid`` is the low-rank query.
    """
    tape = ctx.tape
    for tensor in (t for t in a.tensors if t.fixed):
        weight = ctx.constant(tensor)
        if tape.autocast and ctx.setting.trained and len(tensor.shape) > 1:  # leaves are cached
            tape.casts[id(weight)] = tape.value(tensor.shape, tape.autocast, "autocast copy")
    b, s, heads, width = ctx.batch, ctx.sequence, indexer.heads, indexer.head_dim
    enabled, tape.grad_enabled = tape.grad_enabled, False
    queries = tape.new((b, s, heads * width), x.dtype, "index queries")
    part = tape.new((b, s, heads * a.qk_rope_head_dim), x.dtype, "turned index queries")
    turned = tape.new((b, s, heads * width), x.dtype, "cat index queries")
    keys = [tape.new((b, s, width), x.dtype, "index keys, normed, turned") for _ in range(2)]
    narrow = tape.new((b, s, width), "fp32", "index keys in fp32")
    wide = tape.new((b, s, heads * width), "fp32", "index queries in fp32")
    kind = tape.autocast or "fp32"
    casts = [tape.new((b, s, n), kind, "autocast index factors") for n in (width, heads * width) if tape.autocast]
    # matmul repeats the keys for every query, which of several sequences is a copy (LinearAlgebra.cpp, _matmul_impl)
    repeated = tape.new((b, s, width, s), kind, "index keys of every query") if ctx.setting.batch > 1 else None
    scores = tape.new((b, s, heads, s), kind, "index scores")
    del wide, repeated, narrow, casts
    scaled = tape.new((b, s, heads, s), kind, "scaled index scores")
    del scores
    kept = tape.new((b, s, heads, s), kind, "relu of index scores")
    del scaled
    total = tape.new((b, s, s), kind, "index scores of keys")
    chosen = tape.new((b, s, s), "fp32", "masked index scores")
    indices = tape.new((b, s, min(s, indexer.topk)), "int64", "topk indices")
    found = tape.new(indices.shape, "int32", "indices of chosen keys")
    del queries, part, turned, keys, kept, total, chosen, indices
    tape.grad_enabled = enabled
    return found


def _mask_of_choice(ctx: Context, indexer: Indexer) -> list[Storage]:
    """``index_mask`` and the additive mask that it fills: variables to the module's end. The scatter reads int64 copies
    of the indices.
    """
    tape, b, s = ctx.tape, ctx.batch, ctx.sequence
    ones = tape.new((b, s, s), "bool", "new_ones")
    wide = tape.new((b, s, min(s, indexer.topk)), "int64", "chosen keys")
    chosen = tape.new((b, s, s), "bool", "mask of keys that are not chosen")
    del ones, wide
    return [chosen, tape.new((b, 1, s, s), ctx.setting.params, "mask of chosen keys")]


def _low_queries(ctx: Context, a: LatentAttention, tensors: Tensors, x: Value) -> list[Value]:
    """What the queries' last matrix reads: the input, or low-rank queries after their norm."""
    tape = ctx.tape
    if a.q_lora_rank is None:
        return [x]
    before = linear(tape, x, ctx.replicated(tensors["q_a_proj"], a.bias), tensors["q_a_proj"].name)
    low = _norm(ctx, a.q_lora_rank, before, "q_a_layernorm")
    del before
    return [low]


def _norm(ctx: Context, size: int, x: Value, name: str) -> Value:
    weight, _ = ctx.norm_weight(Norm("rmsnorm", size), name)
    return rms_norm_pieces(ctx.tape, x, weight)


def _rotary(tape: Tape, a: LatentAttention, q: Value, k: Value, stream: str) -> tuple[Value, Value]:
    if isinstance(a, ComplexLatentAttention):
        return rotate_complex(tape, q, k)
    turn = rotate_pairs if a.rotary_interleaved else rotate_half
    return turn(tape, q, stream), turn(tape, k, stream)


def assemble(tape: Tape, k_pass: Value, k_turned: Value, shape: tuple[int, ...]) -> Value:
    """``expand_kv``: an empty tensor into whose slices the two halves of the key are copied (two CopySlices nodes)."""
    dtype = k_pass.dtype
    key = tape.value(shape, dtype, "new_empty keys")
    shared, rope = k_turned.shape, (*shape[:-1], k_turned.shape[-1])

    key = operator(tape, key, k_pass, "CopySlices", temporaries=[(shape, dtype, "CopySlices")])
    turned = operator(tape, Value(k_turned.storage, rope, dtype), k_turned, (shared, dtype, "expand backward"))
    out = Value(key.storage, shape, dtype)
    return operator(tape, out, (key, turned), "CopySlices", later=[(rope, dtype, "CopySlices")])
