"""Gated delta nets without flash-linear-attention, in PyTorch's own operators, and operators of other recurrent layers.

A function replays the one of transformers that its docstring names. Its local variables live until it returns, as those
of that function do, unless a ``del`` ends one earlier.

Sources: transformers 5.23 models/qwen3_5/modeling_qwen3_5.py (Qwen3_5GatedDeltaNet, torch_chunk_gated_delta_rule,
causal_conv1d_fn, Qwen3_5RMSNormGated, l2norm), models/qwen3_next/modeling_qwen3_next.py,
models/olmo_hybrid/modeling_olmo_hybrid.py; torch derivatives.yaml (convolution, constant_pad_nd, select).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import batched, linear
from memcheck.autograd.loss import counted_as, in_pieces
from memcheck.autograd.operator import (
    GRAD_UNCHANGED,
    add,
    add_bias,
    cast,
    cat,
    copy,
    mean_rows,
    mul,
    operator,
    power,
    repeat_kv,
    scale,
    shift,
    slices,
    subtract,
    unary,
)
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value, ceil_div
from memcheck.models.module_types import DoubledBetaMixer
from memcheck.models.types import Mixer, ParameterTensor
from memcheck.record import Record


def contiguous_as(tape: Tape, x: Value, dtype: str) -> Value:
    """Copy ``x.transpose(...).to(dtype, memory_format=contiguous)``; it copies even if the dtype is the same."""
    return copy(tape, x, "contiguous") if x.dtype == dtype else cast(tape, x, dtype)


def pad(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Pad the end of the sequence with ``F.pad``, which copies even if it adds nothing; so does its backward."""
    return operator(tape, tape.value(shape, x.dtype, "pad"), x, "pad backward")


def sum_rows(tape: Tape, x: Value, shape: tuple[int, ...], label: str = "sum") -> Value:
    """Compute ``x.sum(dim)``. Autograd keeps nothing, and the gradient is an expanded view."""
    return operator(tape, tape.value(shape, x.dtype, label), x, GRAD_UNCHANGED)


def select(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Take ``x[:, :, i]``, a view. Its gradient is written into zeros of x's size."""
    return slices(tape, x, shape)[0]


def write(tape: Tape, target: Value, part: Value) -> Value:
    """Run ``target[:, :, i] = part`` in place. Its backward, CopySlices, copies the whole gradient and the part's."""
    out = Value(target.storage, target.shape, target.dtype)
    return operator(tape, out, (target, part), ["CopySlices", (part.shape, target.dtype, "CopySlices")])


def convolve(
    ctx: Context,
    weight_tensor: ParameterTensor,
    bias_tensor: ParameterTensor | None,
    x: Value,
    act: str,
    *,
    fused: bool = False,
) -> Value:
    """Run a causal convolution over tokens: a grouped convolution with padding, a slice to the sequence, an activation.

    ``x``: [tokens, channels]; so is what is returned. The convolution saves its input and its weight, the activation
    saves the padded output. ``act``: name of the activation; empty means none. ``fused``: causal-conv1d's kernel runs
    instead, which neither pads nor casts.
    """
    tape = ctx.tape
    kernel, input_dtype = weight_tensor.shape[-1], x.dtype
    channels = x.shape[-1]
    weight = tape.parameter(ctx.parameter(weight_tensor.name, (channels, *weight_tensor.shape[1:])))
    bias_value = tape.parameter(ctx.parameter(bias_tensor.name, (channels,))) if bias_tensor is not None else None
    x = x if fused else cast(tape, x, weight.dtype)
    if tape.autocast:
        x = cast(tape, x, tape.autocast)
        weight = cast(tape, weight, tape.autocast)
        bias_value = cast(tape, bias_value, tape.autocast) if bias_value is not None else None
    # PyTorch's convolution pads each sequence by kernel - 1 tokens, which the slice below cuts off its output
    rows = ctx.tokens if fused else ctx.batch * (ctx.sequence + kernel - 1)
    out = convolution(tape, x, weight, bias_value, (rows, channels))
    del x, weight, bias_value
    unpadded = out if fused else slices(tape, out, (ctx.tokens, channels))[0]
    del out
    if act:
        unpadded = unary(tape, unpadded, act)
    return cast(tape, unpadded, input_dtype)


def convolution(tape: Tape, x: Value, weight: Value, bias: Value | None, shape: tuple[int, ...]) -> Value:
    """Run a grouped convolution to ``shape``. Autograd keeps its input and its weight."""
    out = tape.value(shape, x.dtype, "conv1d")
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return operator(tape, out, inputs, "conv1d backward", saves=(x, weight))


def l2_norm(tape: Tape, x: Value, rows: tuple[int, ...]) -> Value:
    """Normalise rows: ``x * rsqrt((x * x).sum(-1, keepdim=True) + eps)``. ``rows``: shape of the sums."""
    rstd = unary(tape, shift(tape, sum_rows(tape, mul(tape, x, x), rows)), "rsqrt")
    return mul(tape, x, rstd)


def gated_norm(
    tape: Tape, x: Value, gate: Value, weight: Parameter, *, act: str = "silu", fp32_weight: bool = False
) -> Value:
    """Apply an RMSNorm over each head, and multiply by the activation of an fp32 copy of the gate.

    ``x``, ``gate``: [tokens * heads, head width]; so is the result, in the dtype of ``x``. ``act``: the gate's
    activation. ``fp32_weight``: the norm's weight multiplies fp32 rows (Kimi), not their copy in the dtype of ``x``.
    """
    input_dtype = x.dtype
    x = cast(tape, x, "fp32")
    rstd = unary(tape, shift(tape, mean_rows(tape, power(tape, x))), "rsqrt")
    x = mul(tape, x, rstd)
    del rstd
    if not fp32_weight:
        x = cast(tape, x, input_dtype)
    x = mul(tape, tape.parameter(weight), x)
    activated_gate = unary(tape, cast(tape, gate, "fp32"), act)
    x = mul(tape, x, activated_gate)
    del activated_gate
    return cast(tape, x, input_dtype)


CHUNK = 64
"""Tokens per chunk: ``chunk_size`` of torch_chunk_gated_delta_rule."""


class ChunkSizes(Record):
    """Sizes of a delta rule that runs chunk by chunk."""

    batch: int
    heads: int
    """Value heads on this rank."""
    chunks: int
    """Chunks per sequence, the last one padded."""
    key_width: int
    """Width of a head's keys and queries."""
    value_width: int
    """Width of a head's values."""

    def all_chunks(self, width: int) -> tuple[int, ...]:
        """Return the shape of a tensor with ``width`` numbers per token: [batch, heads, chunks, chunk, width]."""
        return (self.batch, self.heads, self.chunks, CHUNK, width)

    def one_chunk(self, *sizes: int) -> tuple[int, ...]:
        """Return the shape of a tensor of one chunk: [batch, heads, *sizes]."""
        return (self.batch, self.heads, *sizes)


def tensor_of(mixer: Mixer, leaf: str) -> ParameterTensor:
    """Return the parameter of the mixer with a name that ends with ``leaf``."""
    return next(t for t in mixer.tensors if t.name.removesuffix(".weight").endswith(leaf))


def project(ctx: Context, mixer: Mixer, x: Value, leaf: str) -> Value:
    """Apply the linear layer of the mixer with a name that ends with ``leaf``."""
    tensor = tensor_of(mixer, leaf)
    return linear(ctx.tape, x, ctx.weights(tensor, bias=False), tensor.name)


def delta_net_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Run a gated delta net in PyTorch operations: projections, convolution, chunked delta rule, gated norm,
    projection.

    ``x``: [tokens, hidden]; so is what is returned. Variables of the module's forward live to its end. Source:
    transformers 5.23 models/qwen3_5/modeling_qwen3_5.py, Qwen3_5GatedDeltaNet.
    """
    tape = ctx.tape
    heads, key_heads = ceil_div(mixer.heads, ctx.tp), ceil_div(mixer.key_heads, ctx.tp)
    key_shape = (ctx.batch, key_heads, ctx.sequence, mixer.key_dim)
    value_shape = (ctx.batch, heads, ctx.sequence, mixer.head_dim)
    qkv, gate, beta, decay = delta_inputs(ctx, mixer, x)
    del x
    qkv = convolve(ctx, tensor_of(mixer, "conv1d"), None, qkv, "silu")
    query, key, value = tape.views(qkv, key_shape, key_shape, value_shape)
    beta = unary(tape, beta, "sigmoid")
    if isinstance(mixer, DoubledBetaMixer):
        beta = scale(tape, beta)
    decay_rate = _decay_rate(ctx, decay, heads)
    chunks = ceil_div(ctx.sequence, CHUNK)
    sizes = ChunkSizes(batch=ctx.batch, heads=heads, chunks=chunks, key_width=mixer.key_dim, value_width=mixer.head_dim)
    out = chunked_rule(ctx, sizes, query, key, value, decay_rate, beta)
    norm = tensor_of(mixer, "norm")
    rows = (ctx.tokens * heads, mixer.head_dim)
    out = gated_norm(tape, out.view(*rows), gate.view(*rows), ctx.parameter(norm.name, norm.shape))
    return project(ctx, mixer, out.view(ctx.tokens, heads * mixer.head_dim), mixer.output)


def _decay_rate(ctx: Context, decay: Value, heads: int) -> Value:
    """Compute ``-A_log.exp() * softplus(decay.float() + dt_bias)``, [tokens, heads] in fp32.

    ``A_log.exp()`` has one number per head, and is not counted.
    """
    tape = ctx.tape
    a_log = tape.parameter(ctx.parameter("A_log", (heads,)))
    time_step_bias = tape.parameter(ctx.parameter("dt_bias", (heads,)))
    softplus = unary(tape, add_bias(tape, cast(tape, decay, "fp32"), time_step_bias), "softplus")
    return mul(tape, softplus, a_log)


DeltaInputs = tuple[Value, Value, Value, Value]
"""Projections of a delta net before their activations: q, k and v in one tensor, [tokens, 2 * key width + value width];
the output gate, [tokens, value width]; beta and the decay, [tokens, heads]."""


def delta_inputs(ctx: Context, mixer: Mixer, x: Value) -> DeltaInputs:
    """Project a delta net's input, [tokens, hidden], with the matrices that its family has."""
    names = {t.name.removesuffix(".weight").rpartition(".")[2] for t in mixer.tensors}
    if "in_proj_qkv" in names:  # Qwen 3.5
        qkv, gate, beta, decay = (project(ctx, mixer, x, f"in_proj_{name}") for name in ("qkv", "z", "b", "a"))
        return qkv, gate, beta, decay
    heads = ceil_div(mixer.heads, ctx.tp)
    key_width, value_width = ceil_div(mixer.key_heads, ctx.tp) * mixer.key_dim, heads * mixer.head_dim
    widths = (key_width, key_width, value_width)
    if "in_proj_qkvz" in names:
        return _qwen3_next_inputs(ctx, mixer, x, widths, heads)
    return _olmo_inputs(ctx, mixer, x, widths)


def _qwen3_next_inputs(ctx: Context, mixer: Mixer, x: Value, widths: tuple[int, int, int], heads: int) -> DeltaInputs:
    """Replay Qwen3NextGatedDeltaNet's fix_query_key_value_ordering: two matrices, whose outputs are split head by head.

    The split is strided, so that each ``reshape`` copies. ``x``: [tokens, hidden]. ``widths``: of q, k and v.
    """
    tape = ctx.tape
    qkvz, ba = project(ctx, mixer, x, "in_proj_qkvz"), project(ctx, mixer, x, "in_proj_ba")
    *qkv, gate = tape.views(qkvz, *((ctx.tokens, width) for width in (*widths, widths[-1])))
    beta, decay = tape.views(ba, (ctx.tokens, heads), (ctx.tokens, heads))
    gate, qkv = copy(tape, gate, "reshape"), [copy(tape, projection, "reshape") for projection in qkv]
    beta, decay = copy(tape, beta, "reshape"), copy(tape, decay, "reshape")
    return cat(tape, tuple(qkv), (ctx.tokens, sum(widths)), "cat q, k, v"), gate, beta, decay


def _olmo_inputs(ctx: Context, mixer: Mixer, x: Value, widths: tuple[int, int, int]) -> DeltaInputs:
    """Project with OLMo's hybrids' six matrices, and concatenate q, k and v.

    ``x``: [tokens, hidden]. ``widths``: of q, k and v. Source: modeling_olmo_hybrid.py.
    """
    qkv = [project(ctx, mixer, x, f"linear_attn.{name}_proj") for name in "qkv"]
    joined_qkv = cat(ctx.tape, tuple(qkv), (ctx.tokens, sum(widths)), "cat q, k, v")
    del qkv
    beta, decay = project(ctx, mixer, x, "b_proj"), project(ctx, mixer, x, "a_proj")
    return joined_qkv, project(ctx, mixer, x, "g_proj"), beta, decay


def chunked_rule(
    ctx: Context, sizes: ChunkSizes, query: Value, key: Value, value: Value, decay: Value, beta: Value
) -> Value:
    """Replay transformers' torch_chunk_gated_delta_rule with normalised queries and keys, in fp32.

    ``query``, ``key``: [batch, key heads, sequence, key width]. ``value``: [batch, heads, sequence, value width]; so is
    the result. ``decay``, ``beta``: [tokens, heads].
    """
    tape, input_dtype = ctx.tape, value.dtype
    # `to(..., memory_format)` does not copy fp32, and padding by nothing clones: heads stay between tokens, so that
    # products over chunks copy both operands
    is_unchanged = input_dtype == "fp32" and ctx.sequence % CHUNK == 0
    copied = (is_unchanged, is_unchanged)
    query, key, value, decay, beta = _padded_inputs(ctx, sizes, query, key, value, decay, beta)
    v_beta, k_beta = mul(tape, value, beta), mul(tape, key, beta)
    cumulative_decay = scale(tape, decay, "cumsum")
    # within all chunks at once
    decay_between_tokens = _decay_between_tokens(tape, cumulative_decay, sizes.all_chunks(CHUNK))
    triangular_system = _decayed_products(tape, sizes, k_beta, key, decay_between_tokens, "k_beta @ key", copied)
    scores = _decayed_products(tape, sizes, query, key, decay_between_tokens, "query @ key", copied)
    decayed_keys = mul(tape, k_beta, unary(tape, cumulative_decay, "exp"))
    new_values, key_decay = solve(tape, triangular_system, v_beta), solve(tape, triangular_system, decayed_keys)
    # from chunk to chunk
    state = tape.value(sizes.one_chunk(sizes.key_width, sizes.value_width), "fp32", "recurrent state")
    output = tape.value(sizes.all_chunks(sizes.value_width), "fp32", "core attention output")
    query = mul(tape, query, unary(tape, cumulative_decay, "exp"))
    key = mul(tape, key, unary(tape, scale(tape, cumulative_decay), "exp"))
    chunk_decay = unary(tape, select(tape, cumulative_decay, sizes.one_chunk(sizes.chunks, 1)), "exp")
    operands = ChunkOperands(
        query=query, key=key, new_values=new_values, key_decay=key_decay, scores=scores, chunk_decay=chunk_decay
    )
    for _, copies in in_pieces(sizes.chunks, 1):
        with counted_as(tape, copies):
            state, output = _run_chunk(tape, sizes, operands, state, output)
    unpadded = select(tape, output, (ctx.batch, ctx.sequence, sizes.heads, sizes.value_width))
    return contiguous_as(tape, unpadded, input_dtype)


def _padded_inputs(
    ctx: Context, sizes: ChunkSizes, query: Value, key: Value, value: Value, decay: Value, beta: Value
) -> tuple[Value, Value, Value, Value, Value]:
    """Cast the inputs of the delta rule to fp32, normalise and scale, and pad the sequence to whole chunks.

    Inputs as in :func:`chunked_rule`. Returns query, key, value, decay and beta, [batch, heads, chunks, chunk, width],
    in which decay and beta have width 1. Keys of fewer heads than values are repeated first.
    """
    tape = ctx.tape
    if query.shape[1] != sizes.heads:
        query, key = (repeat_kv(tape, t, sizes.heads, copies=True) for t in (query, key))
    query, key, value, beta, decay = (cast(tape, t, "fp32") for t in (query, key, value, beta, decay))
    norm_rows = (*query.shape[:-1], 1)
    query, key = l2_norm(tape, query, norm_rows), l2_norm(tape, key, norm_rows)
    query = scale(tape, query)
    key_shape, value_shape = sizes.all_chunks(sizes.key_width), sizes.all_chunks(sizes.value_width)
    query, key, value = pad(tape, query, key_shape), pad(tape, key, key_shape), pad(tape, value, value_shape)
    beta, decay = (pad(tape, t, sizes.all_chunks(1)) for t in (beta, decay))
    return query, key, value, decay, beta


def _decayed_products(
    tape: Tape, sizes: ChunkSizes, left: Value, key: Value, decay: Value, label: str, copied: tuple[bool, bool]
) -> Value:
    """Compute ``(left @ key.T) * decay`` of all chunks, [batch, heads, chunks, chunk, chunk].

    ``left``, ``key``: [batch, heads, chunks, chunk, key width]. ``copied``: whether the product copies either of them.
    """
    products = batched(tape, left, key, sizes.all_chunks(CHUNK), label, copied)
    return mul(tape, products, decay)


class ChunkOperands(Record):
    """Tensors of which the loop over chunks reads one chunk at a time."""

    query: Value
    """Queries times the decay from the chunk's start, [batch, heads, chunks, chunk, key width]."""
    key: Value
    """Keys times the decay to the chunk's end, in the same shape."""
    new_values: Value
    """``value`` of the loop, [batch, heads, chunks, chunk, value width]."""
    key_decay: Value
    """``k_cumdecay``, [batch, heads, chunks, chunk, key width]."""
    scores: Value
    """Decayed products of queries and keys, [batch, heads, chunks, chunk, chunk]."""
    chunk_decay: Value
    """Decay over each whole chunk, [batch, heads, chunks, 1]."""


def _run_chunk(
    tape: Tape, sizes: ChunkSizes, operands: ChunkOperands, state: Value, output: Value
) -> tuple[Value, Value]:
    """Run one turn of the loop over chunks: write the chunk's output, and update the recurrent state.

    ``state``: [batch, heads, key width, value width]. ``output``: of all chunks, in which the turn writes its part.
    Returns the new state and the output.
    """
    value_shape = sizes.one_chunk(CHUNK, sizes.value_width)
    # v_new = value[:, :, i] - k_cumdecay[:, :, i] @ last_recurrent_state
    chunk_values = select(tape, operands.new_values, value_shape)
    chunk_key_decay = select(tape, operands.key_decay, sizes.one_chunk(CHUNK, sizes.key_width))
    old_values = batched(tape, chunk_key_decay, state, value_shape, "k_cumdecay @ state")
    chunk_values = subtract(tape, chunk_values, old_values)
    del old_values, chunk_key_decay
    # core_attn_out[:, :, i] = query[:, :, i] @ last_recurrent_state + attn[:, :, i] @ v_new
    chunk_query = select(tape, operands.query, sizes.one_chunk(CHUNK, sizes.key_width))
    from_state = batched(tape, chunk_query, state, value_shape, "query @ state")
    chunk_scores = select(tape, operands.scores, sizes.one_chunk(CHUNK, CHUNK))
    from_chunk = batched(tape, chunk_scores, chunk_values, value_shape, "intra @ values")
    chunk_output = add(tape, from_state, from_chunk)
    del from_chunk
    output = write(tape, output, chunk_output)
    del chunk_output
    # last_recurrent_state = last_recurrent_state * decay + key[:, :, i].T @ v_new
    decayed_state = mul(tape, state, select(tape, operands.chunk_decay, sizes.one_chunk(1, 1)))
    chunk_key = select(tape, operands.key, sizes.one_chunk(CHUNK, sizes.key_width))
    state_update = batched(tape, chunk_key, chunk_values, state.shape, "key @ values")
    return add(tape, decayed_state, state_update), output


def _decay_between_tokens(tape: Tape, cumulative_decay: Value, shape: tuple[int, ...]) -> Value:
    """Compute ``exp`` of all differences of cumulative decays within a chunk, masked above the diagonal.

    ``cumulative_decay``: [batch, heads, chunks, chunk, 1]. ``shape``: [batch, heads, chunks, chunk, chunk].
    """
    dtype = cumulative_decay.dtype
    difference = tape.value(shape, dtype, "pairwise decay")
    # the second operand's gradient, negated and summed, is made after that of the first
    second_gradient = [(shape, dtype, "neg"), (cumulative_decay.shape, dtype, "sum")]
    difference = operator(tape, difference, cumulative_decay, "sum", later=second_gradient)
    return unary(tape, scale(tape, difference, "masked_fill"), "exp")


def solve(tape: Tape, system: Value, right_side: Value) -> Value:
    """Run ``torch.linalg.solve_triangular(system, right_side)``, which saves the matrix and its result.

    Backward multiplies the gradient of the right side by the result, and keeps the product's triangle (``tril``).
    Source: FunctionsManual.cpp, linalg_solve_triangular_backward.
    """
    out = tape.value(right_side.shape, right_side.dtype, "solve_triangular")
    matrix, shape, dtype = system.shape, right_side.shape, right_side.dtype

    def solve_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradients of the triangular system and of the right side."""
        right_grad = tape.new(shape, dtype, "solve_triangular backward")
        product = tape.new(matrix, dtype, "solve_triangular backward")
        negated = tape.new(matrix, dtype, "solve_triangular backward")
        del product
        system_grad = tape.new(matrix, dtype, "tril")
        del negated
        return [system_grad, right_grad]

    return tape.record(out, (system, right_side), solve_backward, saves=(system.storage, out.storage))
