"""Multi-head latent attention of DeepSeek V2 and V3 as transformers writes it.

Sources: transformers 5.23 models/deepseek_v2/modeling_deepseek_v2.py, models/deepseek_v3/modeling_deepseek_v3.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear, rotate_complex, rotate_half
from memcheck.autograd.modules import enter_tensor_parallel, leave_tensor_parallel, rms_norm_pieces
from memcheck.autograd.operator import cast, cat, copy, head_view, mul, operator, scale, unary
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div
from memcheck.frameworks.transformers.attention import scale_positions
from memcheck.frameworks.transformers.kernel_choice import attend, grouping_of, kernel_of
from memcheck.frameworks.transformers.rotary_own import rotate_pairs
from memcheck.models.module_types import (
    ComplexLatentAttention,
    GatedLatentAttention,
    Indexer,
    ScaledLatentAttention,
    UnturnedLatentAttention,
)
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, LatentAttention, Norm, ParameterTensor

Tensors = dict[str, ParameterTensor]


def latent_attention(ctx: Context, attention: LatentAttention, x: Value, stream: str) -> Value:
    """Run multi-head latent attention: k and v are expanded from a low-rank latent, and all heads share one rotary key.

    ``x``: [tokens, hidden]; so is what is returned. q is low-rank, too, unless ``q_lora_rank`` is None. ``stream``:
    dtype of the residual stream. Source: transformers 5.23 models/deepseek_v3/modeling_deepseek_v3.py.
    """
    tape = ctx.tape
    tensors = {t.name.split(".")[-2]: t for t in linear_tensors(attention.tensors)}
    nope, rope = attention.qk_nope_head_dim, attention.qk_rope_head_dim
    x = enter_tensor_parallel(ctx, x)
    variables: list[Value] = []  # of the module's forward, which live until it returns
    q = _queries(ctx, attention, tensors, x, variables)
    q_pass, q_rot = tape.views(q, _head_shape(ctx, attention, nope), _head_shape(ctx, attention, rope))
    if isinstance(attention, ScaledLatentAttention):
        q_pass, q = scale(tape, q_pass, "query scale"), scale(tape, q_rot, "query scale")
        q_rot = q  # nothing refers to the queries before the scale
    latent, k_rot = _compressed(ctx, attention, tensors, x)
    query, k_rotated, has_rotary = q, k_rot, not isinstance(attention, UnturnedLatentAttention)
    if has_rotary:
        q_rotated, k_rotated = _rotary(tape, attention, q_rot, k_rot, stream)
        query = cat(tape, (q_pass, q_rotated), _head_shape(ctx, attention, nope + rope), "cat queries")
    if attention.query_scale == "position":
        query = scale_positions(ctx, query)
    key, value = _expanded(ctx, attention, tensors, latent, k_rotated)
    grouping = grouping_of(attention, q.shape[1])
    index_variables = _index_variables(ctx, attention, grouping, x)
    out = attend(ctx, grouping, query, key, value)
    if has_rotary and attention.v_head_dim == nope + rope and kernel_of(ctx, grouping) == "flash":
        # its output lies as the queries do, which a cat has put together head by head
        out = copy(tape, out, "contiguous")
    if isinstance(attention, GatedLatentAttention):
        out = _apply_gate(ctx, tensors["g_proj"], out, x)
    rows = out.view(ctx.tokens, q.shape[1] * attention.v_head_dim)
    result = linear(tape, rows, ctx.weights(tensors["o_proj"], attention.bias), tensors["o_proj"].name)
    del index_variables, variables
    return leave_tensor_parallel(ctx, result)


def _head_shape(ctx: Context, attention: LatentAttention, width: int) -> tuple[int, ...]:
    """Return the shape of a tensor of all heads on this rank: [batch, heads, sequence, width]."""
    return (ctx.batch, ceil_div(attention.heads, ctx.tp), ctx.sequence, width)


def _queries(ctx: Context, attention: LatentAttention, tensors: Tensors, x: Value, variables: list[Value]) -> Value:
    """Project ``x`` [tokens, hidden] to queries, [batch, heads, sequence, nope + rope].

    They go over a normed low rank unless ``q_lora_rank`` is None. An indexer reads that, too: then the module has a
    variable for it (``q_resid``), which is put on ``variables``.
    """
    tape, q_input = ctx.tape, x
    if attention.q_lora_rank is not None:
        low_rank = linear(tape, x, ctx.replicated(tensors["q_a_proj"], attention.bias), tensors["q_a_proj"].name)
        q_input = _norm(ctx, attention.q_lora_rank, low_rank, "q_a_layernorm")
        del low_rank
    if attention.extension is not None:
        variables.append(q_input)
    matrix = tensors["q_proj" if attention.q_lora_rank is None else "q_b_proj"]
    projected = linear(tape, q_input, ctx.weights(matrix, bias=False), matrix.name)
    width = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    return head_view(tape, projected, _head_shape(ctx, attention, width))


def _compressed(ctx: Context, attention: LatentAttention, tensors: Tensors, x: Value) -> tuple[Value, Value]:
    """Compute the normed latent [tokens, kv_lora_rank], and the rotary key of all heads, [batch, 1, sequence, rope]."""
    tape, tensor = ctx.tape, tensors["kv_a_proj_with_mqa"]
    compressed = linear(tape, x, ctx.replicated(tensor, attention.bias), tensor.name)
    key_shape = (ctx.batch, 1, ctx.sequence, attention.qk_rope_head_dim)
    latent, k_rot = tape.views(compressed, (ctx.tokens, attention.kv_lora_rank), key_shape)
    latent = _norm(ctx, attention.kv_lora_rank, latent, "kv_a_layernorm")
    if isinstance(attention, ScaledLatentAttention):
        latent = scale(tape, latent, "latent scale")
    return latent, k_rot


def _expanded(
    ctx: Context, attention: LatentAttention, tensors: Tensors, latent: Value, k_rotated: Value
) -> tuple[Value, Value]:
    """Expand the latent to the keys [batch, heads, sequence, nope + rope] and values [batch, heads, sequence, v]."""
    tape, tensor = ctx.tape, tensors["kv_b_proj"]
    nope, v_dim = attention.qk_nope_head_dim, attention.v_head_dim
    projected = linear(tape, latent, ctx.weights(tensor, bias=False), tensor.name)
    expanded = head_view(tape, projected, _head_shape(ctx, attention, nope + v_dim))
    del projected
    k_pass, value = tape.views(expanded, _head_shape(ctx, attention, nope), _head_shape(ctx, attention, v_dim))
    del expanded
    width = nope + attention.qk_rope_head_dim
    return assemble(tape, k_pass, k_rotated, _head_shape(ctx, attention, width)), value


def _apply_gate(ctx: Context, tensor: ParameterTensor, out: Value, x: Value) -> Value:
    """Multiply the attention output by a sigmoid gate per head or element, projected from the layer's input (Ling 3).

    ``out``: [batch, heads, sequence, v_head_dim]. ``x``: [tokens, hidden]. ``tensor``: the gate's matrix.
    """
    tape = ctx.tape
    gate_logits = linear(tape, x, ctx.weights(tensor, bias=False), "g_proj")
    gate = unary(tape, cast(tape, gate_logits, "fp32"), "sigmoid")
    gate = cast(tape, gate, out.dtype)
    is_per_head = gate.numel * out.shape[-1] == out.numel
    return mul(tape, out, gate.view(*out.shape[:-1], 1) if is_per_head else gate)


def _index_variables(ctx: Context, attention: LatentAttention, grouping: Attention, x: Value) -> list[Storage]:
    """Replay the sparse indexer, and return the storages that variables of the module hold: indices and masks.

    The model holds the indices itself if it passes them on to later layers.
    """
    variables: list[Storage] = []
    if attention.extension is None:
        return variables
    if attention.extension.heads:
        indices = _choose_keys(ctx, attention, attention.extension, x)
        if not attention.extension.passes:
            variables.append(indices)
        del indices
    if kernel_of(ctx, grouping) == "eager":
        variables += _mask_of_choice(ctx, attention.extension)
    return variables


def _choose_keys(ctx: Context, attention: LatentAttention, indexer: Indexer, x: Value) -> Storage:
    """Replay DeepseekV32Indexer (DeepSeek sparse attention): return int32 indices of the chosen keys, [batch, sequence,
    topk].

    ``x``: [tokens, hidden]. It scores each token against each key in every head, and sums over heads, in fp32; under
    autocast in autocast's dtype, since autocast casts the factors of a product. No gradient reaches its parameters, so
    that its tensors are freed when it returns.
    """
    tape = ctx.tape
    for tensor in (t for t in attention.tensors if t.fixed):
        weight = ctx.constant(tensor)
        if tape.autocast and ctx.setting.trained and len(tensor.shape) > 1:  # leaves are cached
            tape.casts[id(weight)] = tape.value(tensor.shape, tape.autocast, "autocast copy")
    b, sequence = ctx.batch, ctx.sequence
    heads, width = indexer.heads, indexer.head_dim
    grad_enabled, tape.grad_enabled = tape.grad_enabled, False
    queries = tape.new((b, sequence, heads * width), x.dtype, "index queries")
    rotated_part = tape.new((b, sequence, heads * attention.qk_rope_head_dim), x.dtype, "turned index queries")
    rotated = tape.new((b, sequence, heads * width), x.dtype, "cat index queries")
    keys = [tape.new((b, sequence, width), x.dtype, "index keys, normed, turned") for _ in range(2)]
    fp32_keys = tape.new((b, sequence, width), "fp32", "index keys in fp32")
    fp32_queries = tape.new((b, sequence, heads * width), "fp32", "index queries in fp32")
    score_dtype = tape.autocast or "fp32"
    factor_widths = (width, heads * width) if tape.autocast else ()
    autocast_copies = [tape.new((b, sequence, count), score_dtype, "autocast index factors") for count in factor_widths]
    # matmul repeats the keys for every query, which of several sequences is a copy (LinearAlgebra.cpp, _matmul_impl)
    repeated = None
    if ctx.setting.batch > 1:
        repeated = tape.new((b, sequence, width, sequence), score_dtype, "index keys of every query")
    scores = tape.new((b, sequence, heads, sequence), score_dtype, "index scores")
    del fp32_queries, repeated, fp32_keys, autocast_copies
    scaled = tape.new((b, sequence, heads, sequence), score_dtype, "scaled index scores")
    del scores
    relu_scores = tape.new((b, sequence, heads, sequence), score_dtype, "relu of index scores")
    del scaled
    summed_scores = tape.new((b, sequence, sequence), score_dtype, "index scores of keys")
    masked_scores = tape.new((b, sequence, sequence), "fp32", "masked index scores")
    indices = tape.new((b, sequence, min(sequence, indexer.topk)), "int64", "topk indices")
    int32_indices = tape.new(indices.shape, "int32", "indices of chosen keys")
    del queries, rotated_part, rotated, keys, relu_scores, summed_scores, masked_scores, indices
    tape.grad_enabled = grad_enabled
    return int32_indices


def _mask_of_choice(ctx: Context, indexer: Indexer) -> list[Storage]:
    """Make ``index_mask`` and the additive mask of the chosen keys, [batch, 1, sequence, sequence].

    Both are variables to the module's end. The scatter reads int64 copies of the indices.
    """
    tape, b, sequence = ctx.tape, ctx.batch, ctx.sequence
    ones = tape.new((b, sequence, sequence), "bool", "new_ones")
    int64_indices = tape.new((b, sequence, min(sequence, indexer.topk)), "int64", "chosen keys")
    index_mask = tape.new((b, sequence, sequence), "bool", "mask of keys that are not chosen")
    del ones, int64_indices
    return [index_mask, tape.new((b, 1, sequence, sequence), ctx.setting.param_dtype, "mask of chosen keys")]


def _norm(ctx: Context, size: int, x: Value, name: str) -> Value:
    """Apply the RMSNorm ``name`` to a low rank, [tokens, size]."""
    weight, _ = ctx.norm_weight(Norm("rmsnorm", size), name)
    return rms_norm_pieces(ctx.tape, x, weight)


def _rotary(tape: Tape, attention: LatentAttention, q: Value, k: Value, stream: str) -> tuple[Value, Value]:
    """Rotate queries and keys by the model's kind of rotation: complex numbers, pairs of neighbours, or halves."""
    if isinstance(attention, ComplexLatentAttention):
        return rotate_complex(tape, q, k)
    rotate = rotate_pairs if attention.rotary_interleaved else rotate_half
    return rotate(tape, q, stream), rotate(tape, k, stream)


def assemble(tape: Tape, k_pass: Value, k_rotated: Value, shape: tuple[int, ...]) -> Value:
    """Assemble keys as ``expand_kv`` does: both halves are copied into slices of an empty tensor (two CopySlices
    nodes).

    ``k_pass``: [batch, heads, sequence, nope]. ``k_rotated``: [batch, 1, sequence, rope], the same for all heads.
    ``shape``: of the keys.
    """
    dtype = k_pass.dtype
    key = tape.value(shape, dtype, "new_empty keys")
    shared_shape, rope_shape = k_rotated.shape, (*shape[:-1], k_rotated.shape[-1])

    key = operator(tape, key, k_pass, "CopySlices", temporaries=[(shape, dtype, "CopySlices")])
    expanded = operator(
        tape, Value(k_rotated.storage, rope_shape, dtype), k_rotated, (shared_shape, dtype, "expand backward")
    )
    out = Value(key.storage, shape, dtype)
    return operator(tape, out, (key, expanded), "CopySlices", later=[(rope_shape, dtype, "CopySlices")])
