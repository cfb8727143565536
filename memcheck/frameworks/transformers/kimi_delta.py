"""Kimi's delta attention: a delta rule whose decay is of each channel, in PyTorch's own operations or fla's kernels.

Sources: transformers 5.23 models/kimi_linear/modeling_kimi_linear.py (KimiLinearDeltaAttention, KimiLinearForgetGate,
chunk_kimi_delta_attention); flash-linear-attention ops/kda/chunk.py, chunk_fwd.py, chunk_bwd.py (ChunkKDAFunction).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import batched
from memcheck.autograd.loss import counted_as, in_pieces
from memcheck.autograd.operator import (
    add,
    add_bias,
    cast,
    cat,
    convert_weight,
    copy,
    mul,
    operator,
    scale,
    shift,
    subtract,
    unary,
    where,
)
from memcheck.autograd.tensor import ITEM_BYTES, Storage, Tape, Value, ceil_div, rounded
from memcheck.frameworks.transformers.delta_rule import (
    CHUNK,
    ChunkSizes,
    convolve,
    gated_norm,
    pad,
    project,
    select,
    sum_rows,
    tensor_of,
    write,
)
from memcheck.models.module_types import BoundedLingDelta, LingDelta
from memcheck.models.types import Mixer
from memcheck.record import Record


class RuleInputs(Record):
    """What the delta rule reads: tensors of [batch, heads, sequence, head_dim], and beta."""

    query: Value
    key: Value
    value: Value
    decay: Value
    """Logarithm of each channel's decay."""
    beta: Value
    """[batch, heads, sequence, 1]"""


def kimi_delta(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Kimi's delta attention with causal-conv1d and flash-linear-attention."""
    return _attention(ctx, mixer, x, fused=True)


def kimi_delta_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Kimi's delta attention in PyTorch, without those packages."""
    return _attention(ctx, mixer, x, fused=False)


def _attention(ctx: Context, mixer: Mixer, x: Value, *, fused: bool) -> Value:
    """Run KimiLinearDeltaAttention: q, k, v projections, one convolution, the delta rule, a gated norm, output
    projection.

    ``x``: [tokens, hidden]; so is what is returned. ``fused``: causal-conv1d and flash-linear-attention run the
    convolution and the rule. Local variables live until it returns, as upstream's do.
    """
    tape, head_dim = ctx.tape, mixer.head_dim
    heads = ceil_div(mixer.heads, ctx.tp)
    width = heads * head_dim
    projections = tuple(project(ctx, mixer, x, f"self_attn.{name}_proj") for name in "qkv")
    qkv = cat(tape, projections, (ctx.tokens, 3 * width), "cat q, k, v")
    del projections
    qkv = convolve(ctx, tensor_of(mixer, "conv1d"), None, qkv, "silu", fused=fused)
    shape = (ctx.batch, heads, ctx.sequence, head_dim)
    query, key, value = tape.views(qkv, shape, shape, shape)
    forget_gate = _ling_forget_gate if isinstance(mixer, LingDelta) else _forget_gate
    decay = forget_gate(ctx, mixer, x, heads).view(*shape)
    beta = unary(tape, project(ctx, mixer, x, "self_attn.b_proj"), "sigmoid").view(ctx.batch, heads, ctx.sequence, 1)
    inputs = RuleInputs(query=query, key=key, value=value, decay=decay, beta=beta)
    out = _fused_rule(ctx, inputs) if fused else _chunked_rule(ctx, heads, head_dim, inputs)
    if isinstance(mixer, LingDelta):
        gate = project(ctx, mixer, x, "self_attn.g_proj")
    else:
        gate = project(ctx, mixer, project(ctx, mixer, x, "g_a_proj"), "g_b_proj")
    norm, rows = tensor_of(mixer, "o_norm"), (ctx.tokens * heads, head_dim)
    weight = ctx.parameter(norm.name, norm.shape)
    normed = gated_norm(tape, out.view(*rows), gate.view(*rows), weight, act="sigmoid", fp32_weight=True)
    return project(ctx, mixer, normed.view(ctx.tokens, width), mixer.output)


def _forget_gate(ctx: Context, mixer: Mixer, x: Value, heads: int) -> Value:
    """Compute KimiLinearForgetGate, ``-exp(A_log) * softplus(...)``: [tokens, heads * head_dim] in fp32.

    ``x``: [tokens, hidden]. The code writes softplus as ``where(g > 20, g, log(1 + exp(g)))``.
    """
    tape = ctx.tape
    rank = tensor_of(mixer, "f_b_proj").shape[1]
    low_rank = project(ctx, mixer, x, "f_a_proj")
    raw = project(ctx, mixer, low_rank.view(ctx.tokens, rank), "f_b_proj")
    dt_bias, a_log = tensor_of(mixer, "dt_bias"), tensor_of(mixer, "A_log")
    fp32_dt_bias = convert_weight(tape, tape.parameter(ctx.parameter(dt_bias.name, (raw.shape[-1],))), "fp32")
    gate_input = add_bias(tape, cast(tape, raw, "fp32"), fp32_dt_bias)
    fp32_a_log = convert_weight(tape, tape.parameter(ctx.parameter(a_log.name, (1, 1, heads, 1))), "fp32")
    factor = unary(tape, fp32_a_log, "exp")
    is_large = tape.new(gate_input.shape, "bool", "g > 20")
    log1p_exp = unary(tape, shift(tape, unary(tape, gate_input, "exp")), "log")
    softplus = where(tape, is_large, gate_input, log1p_exp)
    del log1p_exp, is_large
    return mul(tape, scale(tape, factor, "neg"), softplus)


def _ling_forget_gate(ctx: Context, mixer: Mixer, x: Value, heads: int) -> Value:
    """Compute BailingHybridForgetGate (Ling) in fp32, and cast it back: [tokens, heads * head_dim].

    ``BoundedLingDelta`` has ``lower_bound * sigmoid(exp(A_log) * g)``, other mixers ``-exp(A_log) * softplus(g)``.
    ``x``: [tokens, hidden].
    """
    tape = ctx.tape
    raw = project(ctx, mixer, x, "f_proj")
    dt_bias, a_log = tensor_of(mixer, "dt_bias"), tensor_of(mixer, "A_log")
    gate_input = add_bias(tape, cast(tape, raw, "fp32"), tape.parameter(ctx.parameter(dt_bias.name, (raw.shape[-1],))))
    factor = unary(tape, tape.parameter(ctx.parameter(a_log.name, (heads,))), "exp")
    if isinstance(mixer, BoundedLingDelta):
        result = scale(tape, unary(tape, mul(tape, factor, gate_input), "sigmoid"), "lower bound")
    else:
        result = mul(tape, scale(tape, factor, "neg"), unary(tape, gate_input, "softplus"))
    return cast(tape, result, raw.dtype if tape.autocast is None else x.dtype)


def _chunked_rule(ctx: Context, heads: int, head_dim: int, inputs: RuleInputs) -> Value:
    """Replay chunk_kimi_delta_attention in PyTorch operators and fp32: [batch, heads, sequence, head_dim].

    ``heads``: on this rank. Local variables live until it returns, as upstream's do.
    """
    tape, input_dtype = ctx.tape, inputs.query.dtype
    sizes = ChunkSizes(
        batch=ctx.batch, heads=heads, chunks=ceil_div(ctx.sequence, CHUNK), key_width=head_dim, value_width=head_dim
    )
    query, key, value, decay, beta = (cast(tape, copy(tape, t, "contiguous"), "fp32") for t in inputs)
    query, key = _normalise_rows(tape, query), _normalise_rows(tape, key)
    query = scale(tape, pad(tape, query, sizes.all_chunks(head_dim)))
    key, value, decay = (pad(tape, t, sizes.all_chunks(head_dim)) for t in (key, value, decay))
    beta = pad(tape, beta, sizes.all_chunks(1))
    v_beta, k_beta = mul(tape, value, beta), mul(tape, key, beta)
    cumulative_decay = scale(tape, decay, "cumsum")
    del decay
    # within all chunks at once
    pairs_shape = (*sizes.all_chunks(CHUNK), head_dim)
    pairwise_decay = scale(tape, _difference(tape, cumulative_decay, pairs_shape), "masked_fill")
    pairwise_decay = unary(tape, pairwise_decay, "exp")
    system = _inverse_system(tape, sizes, k_beta, key, pairwise_decay)
    value = batched(tape, system, v_beta, sizes.all_chunks(head_dim), "system @ values")
    decayed_keys = mul(tape, k_beta, unary(tape, cumulative_decay, "exp"))
    key_decay = batched(tape, system, decayed_keys, sizes.all_chunks(head_dim), "system @ keys")
    del decayed_keys  # a temporary in upstream's expression
    # from chunk to chunk
    state = tape.value(sizes.one_chunk(head_dim, head_dim), "fp32", "recurrent state")
    output = tape.value(sizes.all_chunks(head_dim), "fp32", "core attention output")
    operands = KimiChunkOperands(
        query=query,
        key=key,
        value=value,
        cumulative_decay=cumulative_decay,
        pairwise_decay=pairwise_decay,
        key_decay=key_decay,
    )
    turn_variables: list[Value] = []
    for _, copies in in_pieces(sizes.chunks, 1):
        with counted_as(tape, copies):
            state, output = _run_chunk(tape, sizes, operands, state, output, turn_variables)
    out = select(tape, output, (ctx.batch, ctx.sequence, heads, head_dim))
    return cast(tape, copy(tape, out, "contiguous"), input_dtype)


def _inverse_system(tape: Tape, sizes: ChunkSizes, k_beta: Value, key: Value, pairwise_decay: Value) -> Value:
    """Compute each chunk's triangular matrix ``I + attn``, [batch, heads, chunks, chunk, chunk], inverted row by row.

    ``k_beta``, ``key``: [batch, heads, chunks, chunk, head_dim]. ``pairwise_decay``: of each channel between two tokens
    of a chunk, [batch, heads, chunks, chunk, chunk, head_dim]; so is the product before its sum.
    """
    product = mul(tape, _outer_product(tape, k_beta, key, pairwise_decay.shape), pairwise_decay)
    system = sum_rows(tape, product, sizes.all_chunks(CHUNK))
    del product
    system = scale(tape, scale(tape, system, "neg"), "masked_fill")
    return shift(tape, _invert_in_place(tape, system), "add eye")


class KimiChunkOperands(Record):
    """Tensors of which the loop over chunks reads one chunk at a time, [batch, heads, chunks, chunk, head_dim]."""

    query: Value
    key: Value
    value: Value
    cumulative_decay: Value
    """Sum of the decays' logarithms from the chunk's start."""
    pairwise_decay: Value
    """Decay between two tokens of a chunk, [batch, heads, chunks, chunk, chunk, head_dim]."""
    key_decay: Value
    """``k_cumdecay`` of upstream."""


def _run_chunk(
    tape: Tape, sizes: ChunkSizes, operands: KimiChunkOperands, state: Value, output: Value, turn_variables: list[Value]
) -> tuple[Value, Value]:
    """Run one turn of the loop over chunks: write the chunk's output, and update the recurrent state.

    ``state``: [batch, heads, head_dim, head_dim]. ``output``: of all chunks, in which the turn writes its part.
    ``turn_variables``: the loop's variables, which live until the next turn has bound them again. Returns the new state
    and the output.
    """
    head_dim = sizes.key_width
    chunk_shape, scores_shape = sizes.one_chunk(CHUNK, head_dim), sizes.one_chunk(CHUNK, CHUNK)
    query, key, value, decay = (
        select(tape, t, chunk_shape) for t in (operands.query, operands.key, operands.value, operands.cumulative_decay)
    )
    from_state = batched(tape, mul(tape, query, unary(tape, decay, "exp")), state, chunk_shape, "query @ state")
    pairs_shape = (*scores_shape, head_dim)
    decayed_product = mul(
        tape, _outer_product(tape, query, key, pairs_shape), select(tape, operands.pairwise_decay, pairs_shape)
    )
    scores = sum_rows(tape, decayed_product, scores_shape)
    del decayed_product
    scores = scale(tape, scores, "masked_fill")
    # v_new = v_i - k_cumdecay[:, :, i] @ last_recurrent_state
    old_values = batched(tape, select(tape, operands.key_decay, chunk_shape), state, chunk_shape, "k_cumdecay @ state")
    new_values = subtract(tape, value, old_values)
    turn_variables[:] = (query, key, value, decay, from_state, scores, old_values, new_values)
    output = write(
        tape, output, add(tape, from_state, batched(tape, scores, new_values, chunk_shape, "intra @ values"))
    )
    # last_recurrent_state = last_recurrent_state * g_i[-1].exp() + (k_i * (g_i[-1] - g_i).exp()).T @ v_new
    decayed_state = mul(tape, state, unary(tape, select(tape, decay, sizes.one_chunk(head_dim, 1)), "exp"))
    decay_to_end = _row_minus(tape, select(tape, decay, sizes.one_chunk(1, head_dim)), decay)
    decayed_key = mul(tape, key, unary(tape, decay_to_end, "exp"))
    state_update = batched(tape, decayed_key, new_values, state.shape, "key @ values")
    return add(tape, decayed_state, state_update), output


def _normalise_rows(tape: Tape, x: Value) -> Value:
    """Normalise rows: ``x / sqrt((x * x).sum(-1) + eps)``.

    The quotient keeps both operands. Its backward makes four tensors of x's size.
    """
    rows = (*x.shape[:-1], 1)
    length = unary(tape, shift(tape, sum_rows(tape, mul(tape, x, x), rows)), "sqrt")
    out = tape.value(x.shape, x.dtype, "div")
    shape, dtype = x.shape, x.dtype
    return operator(
        tape,
        out,
        (x, length),
        ["div backward", (rows, dtype, "sum")],
        saves=(x, length),
        temporaries=[(shape, dtype, "div backward")] * 4,
    )


def _difference(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Compute ``x.unsqueeze(-2) - x.unsqueeze(-3)``. The second operand's gradient is a negated copy, and both are
    summed.
    """
    out = tape.value(shape, x.dtype, "pairwise decay")
    negated, second = (shape, x.dtype, "neg"), (x.shape, x.dtype, "sum")
    return operator(tape, out, x, "sum", temporaries=[negated], later=[second])


def _row_minus(tape: Tape, row: Value, x: Value) -> Value:
    """Subtract all rows from one: ``row - x``, with ``row`` broadcast."""
    out = tape.value(x.shape, x.dtype, "sub")
    return operator(tape, out, (row, x), [(row.shape, x.dtype, "sum"), "neg"], reverse=True)


def _outer_product(tape: Tape, left: Value, right: Value, shape: tuple[int, ...]) -> Value:
    """Compute ``left.unsqueeze(-2) * right.unsqueeze(-3)``, which autograd keeps both of.

    Both gradients have the full ``shape`` before they are summed to the shape of their factor.
    """
    out = tape.value(shape, left.dtype, "outer product")
    small, dtype = left.shape, left.dtype

    def mul_backward(grad: Storage) -> list[Storage | None]:
        """Make both gradients in the full shape, then sum each to the shape of its factor."""
        full_a_grad, full_b_grad = (tape.new(shape, dtype, "mul backward") for _ in range(2))
        a_grad = tape.new(small, dtype, "sum")
        del full_a_grad
        b_grad = tape.new(small, dtype, "sum")
        del full_b_grad
        return [a_grad, b_grad]

    return tape.record(out, (left, right), mul_backward, saves=(left.storage, right.storage))


def _invert_in_place(tape: Tape, x: Value) -> Value:
    """Invert each chunk's triangular matrix in place, row by row.

    Row i is ``attn[..., i, :i] = row + (row.unsqueeze(-1) * sub).sum(-2)``, which saves fp32 copies of ``row``, i
    numbers, and of ``sub``, i * i numbers. Backward of each slice fills zeros of the whole tensor (CopySlices).
    """
    matrices, shape, dtype = x.numel // (CHUNK * CHUNK), x.shape, x.dtype
    saved_bytes = 0
    for i in range(1, CHUNK):
        row_bytes = matrices * i * ITEM_BYTES["fp32"]
        saved_bytes += rounded(row_bytes) + rounded(row_bytes * i)
    copies = tape.new((saved_bytes,), "int8", "rows and squares")
    out, temporaries = Value(x.storage, shape, dtype), [(shape, dtype, "CopySlices")] * 3
    return operator(tape, out, x, "CopySlices", saves=(copies,), temporaries=temporaries)


def _fused_rule(ctx: Context, inputs: RuleInputs) -> Value:
    """Run flash-linear-attention's ChunkKDAFunction: [batch, heads, sequence, head_dim].

    It saves normalised q and k with their lengths, v, the decay and its sums, beta, and two products within chunks.
    Backward computes the states of chunks, and their inputs, again.
    """
    tape = ctx.tape
    shape, input_dtype = inputs.query.shape, inputs.query.dtype
    rows = (*shape[:-1], 1)
    saved: list[Storage | None] = [tape.new(shape, input_dtype, "unit q, k, contiguous v") for _ in range(3)]
    saved += [tape.new(rows, "fp32", "rstd") for _ in range(2)]
    saved += [tape.new(shape, "fp32", "sums of decay"), inputs.decay.storage, inputs.beta.storage]
    saved += [tape.new((*shape[:-1], CHUNK), input_dtype, "products within chunks") for _ in range(2)]
    batch, heads, sequence, head_dim = shape
    states = (batch * heads * ceil_div(sequence, CHUNK), head_dim, head_dim)
    forward_temporaries = [tape.new(shape, input_dtype, "w, u, kg, v_new") for _ in range(4)]
    forward_temporaries.append(tape.new(states, input_dtype, "states of chunks"))
    out = tape.value(shape, input_dtype, "kimi delta rule")
    del forward_temporaries
    label = "kimi delta rule backward"
    recomputed = [(shape, input_dtype, "recomputed w, u, qg, kg, v_new")] * 5
    recomputed += [(states, input_dtype, "states of chunks")] * 2
    fp32_grads = [(shape, "fp32", label)] * 3 + [((*shape[:-1], CHUNK), "fp32", label)]
    return operator(tape, out, inputs, label, saves=saved, temporaries=recomputed + fp32_grads)
