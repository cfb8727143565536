"""DeepSeek V4's attention: eager, over a window and over keys that each stand for several tokens.

Source: transformers 5.23 models/deepseek_v4/modeling_deepseek_v4.py (DeepseekV4Attention, DeepseekV4HCACompressor,
DeepseekV4CSACompressor, DeepseekV4Indexer, DeepseekV4IndexerScorer, apply_rotary_pos_emb).
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.eager import eager_with_sinks
from memcheck.autograd.kernels import Weights, linear, rotate_half
from memcheck.autograd.modules import rms_norm_pieces
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    cast,
    cast_weight,
    cat,
    copy,
    factors,
    head_view,
    mean_rows,
    mul,
    operator,
    power,
    repeat_kv,
    scale,
    slices,
    unary,
)
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.errors import UnsupportedError
from memcheck.models.module_types import Compressed
from memcheck.models.types import Attention, Norm, ParameterTensor

Tensors = dict[str, ParameterTensor]
TOPK = 512
"""Keys that released models choose for each token."""


def compressed_attention(ctx: Context, attention: Attention, compressed: Compressed, x: Value) -> Value:
    """Run DeepSeek V4's attention over a sliding window of keys and over compressed keys of earlier tokens.

    ``x``: [tokens, hidden]; so is the result. ``compressed``: how tokens are pooled to compressed keys. Every variable
    of its forward lives until it returns.

    Raises:
        UnsupportedError: there is tensor or context parallelism.
    """
    if ctx.tp > 1 or ctx.setting.context_parallel > 1:
        raise UnsupportedError(
            "memcheck has no model of DeepSeek V4's attention on several ranks",
            "leave tensor and context at 1: transformers cuts its experts alone",
            "/parallelism",
        )
    tape, batch = ctx.tape, ctx.batch
    sequence, head_dim = ctx.sequence, attention.head_dim
    tensors = {t.name.removeprefix("self_attn.").removesuffix(".weight"): t for t in attention.tensors}
    low_rank_query = _norm(ctx, "q_a_norm", _project(ctx, tensors, "q_a_proj", x))
    q = head_view(
        tape, _project(ctx, tensors, "q_b_proj", low_rank_query), (batch, attention.heads, sequence, head_dim)
    )
    q = _unweighted_norm(tape, q)
    q = _rotate(ctx, attention, q)
    kv = _norm(ctx, "kv_norm", _project(ctx, tensors, "kv_proj", x)).view(batch, 1, sequence, head_dim)
    kv = _rotate(ctx, attention, kv)
    bias = mask = keys = None
    if compressed.rate:
        keys, bias = _compressed_keys(ctx, attention, compressed, tensors, x, low_rank_query)
        windows = keys.shape[2]
        kv = cat(tape, (kv, keys), (batch, 1, sequence + windows, head_dim), "cat compressed keys")
        if windows:
            mask = tape.new((batch, 1, sequence, sequence + windows), ctx.setting.param_dtype, "cat masks")
    out = _attend(ctx, attention, q, kv)
    out = _rotate(ctx, attention, out)
    grouped = _grouped_linear(ctx, compressed, tensors["o_a_proj"], copy(tape, out, "reshape"))
    result = _project(ctx, tensors, "o_b_proj", grouped)
    del low_rank_query, q, kv, bias, mask, keys, out, grouped
    return result


def _project(ctx: Context, tensors: Tensors, name: str, x: Value) -> Value:
    return linear(ctx.tape, x, ctx.replicated(tensors[name]), tensors[name].name)


def _norm(ctx: Context, name: str, x: Value) -> Value:
    weight, _ = ctx.norm_weight(Norm("rmsnorm", x.shape[-1]), name)
    return rms_norm_pieces(ctx.tape, x, weight, weight_in_fp32=True)


def _unweighted_norm(tape: Tape, x: Value) -> Value:
    """Run DeepseekV4UnweightedRMSNorm: the norm is computed from an fp32 copy, and multiplies x in its own dtype."""
    rstd = unary(tape, mean_rows(tape, power(tape, cast(tape, x, "fp32"))), "rsqrt")
    return mul(tape, x, cast(tape, rstd, x.dtype))


def _rotate(ctx: Context, attention: Attention, x: Value) -> Value:
    """Rotate the last ``rotary_dim`` elements of each head in fp32, cast them back, and concatenate.

    ``x``: [batch, heads, sequence, head_dim]. Each call repeats cos and sin in the parameters' dtype.
    """
    tape, shape, rotary_dim = ctx.tape, x.shape, attention.rotary_dim
    dtype = ctx.setting.param_dtype
    tables = tuple(tape.new((shape[2], rotary_dim), dtype, "repeated rotary table") for _ in range(2))
    unrotated, to_rotate = slices(tape, x, (*shape[:-1], shape[-1] - rotary_dim), (*shape[:-1], rotary_dim))
    rotated = cast(tape, rotate_half(tape, to_rotate, "fp32", tables), x.dtype)
    return cat(tape, (unrotated, rotated), shape, "cat rotary")


def _attend(ctx: Context, attention: Attention, q: Value, kv: Value) -> Value:
    """Replay eager_attention_forward with sinks; sinks, logits and probabilities are fp32 even with bf16 weights."""
    tape = ctx.tape
    # repeated keys are a view with stride 0, which a batched product of several sequences copies
    several_sequences = ctx.setting.batch > 1
    k, v = (repeat_kv(tape, kv, attention.heads) for _ in range(2))
    sinks = tape.parameter(ctx.parameter("self_attn.sinks", (attention.heads,))) if attention.sinks else None
    out = eager_with_sinks(
        tape, q, k, v, sinks, ctx.unused_outputs, mask_dtype=ctx.setting.param_dtype if tape.autocast else None,
        p_dropout=attention.dropout, copied=(False, several_sequences, several_sequences),
    )  # fmt: skip
    return copy(tape, out, "contiguous")


def _compressed_keys(
    ctx: Context, attention: Attention, compressed: Compressed, tensors: Tensors, x: Value, low_rank_query: Value
) -> tuple[Value, Storage | None]:
    """Compute one compressed key per window of tokens, [batch, 1, windows, head_dim], and the additive mask over them.

    The mask, [batch, 1, sequence, windows], hides windows that a token may not see; None: the sequence is shorter than
    a window. ``compressed``: window size and indexer. ``low_rank_query``: q before its up projection, for the indexer.
    """
    tape, batch, sequence = ctx.tape, ctx.batch, ctx.sequence
    windows = ctx.setting.sequence // compressed.rate
    keys, variables = _pool_windows(ctx, attention, compressed, tensors, "compressor", x)
    if not windows:
        for tensor in (t for t in attention.tensors if t.fixed and ctx.setting.sequence < compressed.rate):
            ctx.constant(tensor)
        return keys, None
    chosen = _choose(ctx, attention, compressed, tensors, x, low_rank_query) if compressed.index_heads else None
    if chosen is None:
        zeros = tape.new((batch, 1, sequence, windows), keys.dtype, "zeros")
        bias = tape.new((batch, 1, sequence, windows), keys.dtype, "masked_fill")
        del zeros, variables
        return keys, bias
    safe_indices = tape.new(chosen.shape, "int64", "safe indices")
    bias = tape.new((batch, 1, sequence, windows + 1), keys.dtype, "block bias")
    del safe_indices, chosen, variables
    return keys, bias


def _pool_windows(
    ctx: Context, attention: Attention, compressed: Compressed, tensors: Tensors, module: str, x: Value
) -> tuple[Value, list[Value]]:
    """Pool each window of tokens to one key, weighted by an fp32 softmax of gates (DeepseekV4 compressor).

    ``module``: its name. With an indexer, windows overlap: each also reads the window before it. Returns the keys
    [batch, 1, windows, width], and the values that variables of the module hold until it returns.
    """
    tape, batch = ctx.tape, ctx.setting.batch
    windows = ctx.setting.sequence // compressed.rate
    width = tensors[module + ".kv_norm"].shape[0]
    projected = _project(ctx, tensors, module + ".kv_proj", x)
    gate = _project(ctx, tensors, module + ".gate_proj", x)
    bias = ctx.parameter(tensors[module + ".position_bias"].name, tensors[module + ".position_bias"].shape)
    if not windows:
        ctx.norm_weight(Norm("rmsnorm", width), module + ".kv_norm")
        return tape.value((batch, 1, 0, width), projected.dtype, "new_zeros"), [projected, gate]
    windows_shape = (batch * windows * compressed.rate, projected.shape[-1])
    windowed, gates = projected, gate
    if windows_shape[0] != projected.shape[0]:  # the last tokens do not fill a window
        windowed, gates = slices(tape, projected, windows_shape)[0], slices(tape, gate, windows_shape)[0]
    gates = _add_position_bias(tape, gates, tape.parameter(bias))
    variables = [projected, gate, gates]
    if compressed.index_heads:
        shape = (batch * windows, 2 * compressed.rate, width)
        windowed, gates = (_overlap_windows(tape, v, shape) for v in (windowed, gates))
    else:
        shape = (batch * windows, compressed.rate, width)
        windowed, gates = windowed.view(*shape), gates.view(*shape)
    weights = cast(tape, kernels.softmax(tape, gates, "fp32"), windowed.dtype)
    weighted = mul(tape, windowed, weights)
    del weights
    pooled = _sum_windows(tape, weighted, (batch * windows, width))
    del weighted
    pooled = _norm(ctx, module + ".kv_norm", pooled)
    return _rotate(ctx, attention, pooled.view(batch, 1, windows, width)), [*variables, windowed, gates]


def _sum_windows(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Replay ``x.sum(dim=2)``, which autocast runs in fp32; the later cat then promotes all keys."""
    narrow = x.dtype
    out = tape.value(shape, "fp32" if tape.autocast else narrow, "sum of windows")
    return operator(tape, out, x, GRAD_UNCHANGED if out.dtype == narrow else "to backward")


def _add_position_bias(tape: Tape, x: Value, bias: Value) -> Value:
    """Compute ``x + position_bias``, in the wider dtype. The bias is fp32 in a loaded model, unless FSDP casts it."""
    out = tape.value(x.shape, promote(x.dtype, bias.dtype), "add")
    shape, dtype = x.shape, x.dtype
    bias_shape, bias_dtype = bias.shape, bias.dtype
    bias_needs_grad = bias.needs_grad

    def add_backward(grad: Storage) -> list[Storage | None]:
        x_grad = grad if dtype == grad.dtype else tape.new(shape, dtype, "to backward")
        return [x_grad, tape.new(bias_shape, bias_dtype, "sum") if bias_needs_grad else None]

    return tape.record(out, (x, bias), add_backward)


def _overlap_windows(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Make overlapping windows: slices are copied into both halves of a tensor of zeros or -inf (two
    CopySlices nodes).
    """
    out = tape.value(shape, x.dtype, "overlapping windows")
    source_shape, dtype = x.shape, x.dtype
    half = (shape[0], shape[1] // 2, shape[2])
    first_half = operator(
        tape,
        Value(out.storage, shape, dtype),
        x,
        "slice backward",
        temporaries=[(shape, dtype, "CopySlices"), (half, dtype, "CopySlices")],
    )
    both_halves = Value(out.storage, shape, dtype)

    def second_half_backward(grad: Storage) -> list[Storage | None]:
        """Backward of an assignment to a slice (CopySlices): copies of the whole and of the half, and the source's
        gradient.
        """
        target_grad = tape.new(shape, dtype, "CopySlices")
        half_grad = tape.new(half, dtype, "CopySlices")
        source_grad = tape.new(source_shape, dtype, "slice backward")
        del half_grad
        return [target_grad, source_grad]

    return tape.record(both_halves, (first_half, x), second_half_backward)


def _choose(
    ctx: Context, attention: Attention, compressed: Compressed, tensors: Tensors, x: Value, low_rank_query: Value
) -> Storage:
    """Replay DeepseekV4Indexer: return the int64 indices of the chosen compressed keys, [batch, sequence, topk].

    It scores each token against each compressed key in fp32, and sums over heads. No gradient reaches it, so that its
    graph is freed when it returns. ``low_rank_query``: [tokens, query rank].
    """
    tape, b, sequence = ctx.tape, ctx.batch, ctx.sequence
    heads, width, module = compressed.index_heads, compressed.index_dim, "compressor.indexer"
    windows = ctx.setting.sequence // compressed.rate
    keys, variables = _pool_windows(ctx, attention, compressed, tensors, module, x)
    q = _project(ctx, tensors, module + ".q_b_proj", low_rank_query).view(b, heads, sequence, width)
    q = _rotate(ctx, attention, q)
    fp32_queries = cast(tape, q, "fp32")
    # matmul repeats the keys for every query, which of several sequences is a copy (LinearAlgebra.cpp, _matmul_impl)
    fp32_keys = cast(tape, keys, "fp32")
    repeated_shape, copied = (b, sequence, width, windows), (ctx.setting.batch > 1,) * 2
    scores = kernels.batched(
        tape, fp32_queries, fp32_keys.view(*repeated_shape), (b, sequence, heads, windows), "index scores", copied
    )
    del fp32_queries, fp32_keys
    scores = scale(tape, unary(tape, scores, "relu"), "softmax scale")
    head_weights = cast(tape, _project(ctx, tensors, module + ".scorer.weights_proj", x), "fp32")
    weights = scale(tape, head_weights, "weights scaling")
    del head_weights
    weighted = mul(tape, scores, weights.view(b, sequence, heads, 1))
    summed_scores = tape.value((b, sequence, windows), "fp32", "index scores of keys")
    summed_scores = operator(tape, summed_scores, weighted, GRAD_UNCHANGED)
    del weighted, scores, weights
    future = tape.new((b, sequence, windows), "bool", "future mask")
    masked = tape.new((b, sequence, windows), "fp32", "masked index scores")
    chosen_shape = (b, sequence, min(windows, TOPK))
    values = tape.new(chosen_shape, "fp32", "topk values")
    indices = tape.new(chosen_shape, "int64", "topk indices")
    del values
    invalid = tape.new(chosen_shape, "bool", "invalid")
    fill_values = tape.new(chosen_shape, "int64", "full_like")
    chosen_keys = tape.new(chosen_shape, "int64", "chosen keys")
    del future, masked, indices, invalid, fill_values, summed_scores, keys, variables, q
    return chosen_keys


def _grouped_linear(ctx: Context, compressed: Compressed, tensor: ParameterTensor, x: Value) -> Value:
    """Run DeepseekV4GroupedLinear: a batched product of each group's rows with its part of one matrix.

    ``x``: [batch, heads, sequence, head_dim]. Returns [tokens, out]. Raises ``UnsupportedError`` with an adapter.
    """
    tape, tokens = ctx.tape, ctx.tokens
    out, inner = tensor.shape
    weights: Weights = ctx.weights(tensor._replace(shard="none"), bias=False)
    if weights.lora_a is not None:
        raise UnsupportedError(
            "peft's adapter of o_a_proj, a product of each group of heads, has another shape than its output: "
            "the forward of DeepSeek V4 ends in an error",
            "name target_modules without o_a_proj: all-linear has it",
            "/training/lora/target_modules",
        )
    matrix, matrix_shape = tape.parameter(weights.weight), (out, inner)
    if tape.autocast:
        matrix = cast_weight(tape, matrix, tape.autocast)
        x = cast(tape, x, tape.autocast)
    matrix_dtype = matrix.dtype
    # the product's gradient is transposed, and copied for the view of the weight
    matrix = operator(
        tape,
        Value(matrix.storage, matrix_shape, matrix_dtype),
        matrix,
        (matrix_shape, matrix_dtype, "contiguous gradient"),
    )
    shape = (compressed.groups, tokens, out // compressed.groups)
    product = tape.value(shape, x.dtype, tensor.name)
    dtype = x.dtype
    product = operator(
        tape, product, (x, matrix), ["o_a_proj dX", (matrix_shape, dtype, "o_a_proj dW")], saves=factors(x, matrix)
    )
    return copy(tape, product, "reshape").view(tokens, out)
