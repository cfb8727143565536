"""Mamba-2 in PyTorch's own operations: what it runs in without mamba-ssm and causal-conv1d.

Sources: transformers 5.23 models/mamba2/modeling_mamba2.py (Mamba2Mixer, mamba2_chunk_scan, segment_sum), which
Nemotron-H, Bamba, Falcon-H1, Granite's hybrids and Zamba 2 repeat; aten/src/ATen/native/Linear.cpp (sumproduct_pair: an
einsum permutes its operands for one batched product, and copies those whose dimensions no longer merge; the copies are
variables until the product is there, whatever autocast casts of them).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import batched, linear
from memcheck.autograd.operator import (
    add,
    add_bias,
    cast,
    cat,
    clamp,
    convert_weight,
    copy,
    mean_rows,
    mul,
    operator,
    power,
    repeat_kv,
    scale,
    shift,
    unary,
)
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div, promote
from memcheck.frameworks.transformers.delta_rule import convolve, pad, select
from memcheck.models.module_types import FalconH1Mixer, NormFirstMixer
from memcheck.models.types import Mixer, ParameterTensor
from memcheck.record import Record


class Scan(Record):
    """Sizes of a chunked scan: sequences, heads, chunks per sequence, tokens per chunk, head width, state size."""

    batch: int
    heads: int
    chunks: int
    chunk: int
    width: int
    state: int

    def wide(self, size: int) -> tuple[int, ...]:
        """Return the shape of one matrix per chunk and head: [batch, chunks * heads, chunk, size]."""
        return (self.batch, self.chunks * self.heads, self.chunk, size)


def mamba2_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Run Mamba-2 in PyTorch operations: in_proj, convolution, chunked scan, gated norm, out_proj.

    ``x``: [tokens, hidden]; so is what is returned. Variables of the module's forward live to its end. Source:
    transformers 5.23 models/mamba2/modeling_mamba2.py, Mamba2Mixer.
    """
    tape = ctx.tape
    heads, groups = ceil_div(mixer.heads, ctx.tp), ceil_div(mixer.groups, ctx.tp)
    inner_width, group_width = heads * mixer.head_dim, groups * mixer.key_dim
    tensors = {t.name.rpartition("mixer.")[2].rpartition("mamba.")[2]: t for t in mixer.tensors}
    projected, input_dtype = _project(ctx, tensors, "in_proj", x), x.dtype
    del x
    if isinstance(mixer, FalconH1Mixer):
        projected = multiplied(ctx, projected)
    rows = ctx.tokens
    gate, conv_out, time_step = tape.views(
        projected, (rows, inner_width), (rows, inner_width + 2 * group_width), (rows, heads)
    )
    conv_out = convolve(ctx, tensors["conv1d.weight"], tensors.get("conv1d.bias"), conv_out, "silu")
    ssm_input, input_matrix, output_matrix = tape.views(
        conv_out, (rows, inner_width), (rows, group_width), (rows, group_width)
    )
    decay_rate = unary(tape, convert_weight(tape, tape.parameter(ctx.parameter("A_log", (heads,))), "fp32"), "exp")
    chunk = mixer.chunk
    chunks = ceil_div(ctx.sequence, chunk)
    scan = Scan(batch=ctx.batch, heads=heads, chunks=chunks, chunk=chunk, width=mixer.head_dim, state=mixer.key_dim)
    skip_factor = tape.parameter(ctx.parameter("D", (heads,)))
    time_step_bias = tape.parameter(ctx.parameter("dt_bias", (heads,)))
    group_shape = (ctx.batch, groups, ctx.sequence, mixer.key_dim)
    b_and_c = input_matrix.view(*group_shape), output_matrix.view(*group_shape)
    out = _chunk_scan(
        tape, scan, ctx.tokens, ssm_input, (time_step, time_step_bias), (decay_rate, skip_factor), b_and_c
    )
    out = _gated_norm(ctx, mixer, tensors, out, gate)
    out = cast(tape, out, input_dtype)
    result = _project(ctx, tensors, "out_proj", out)
    del projected, gate, conv_out, time_step, ssm_input, input_matrix, output_matrix, out
    return result


def multiplied(ctx: Context, x: Value) -> Value:
    """Multiply in_proj's output by Falcon-H1's ``mup_vector``: [tokens, width] times a buffer of [width].

    The buffer has the dtype in which the model is made, and ``x`` is promoted to it.
    """
    tape, promoted_dtype = ctx.tape, promote(x.dtype, ctx.setting.buffer_dtype)
    out = tape.value(x.shape, promoted_dtype, "in_proj * multipliers")
    if promoted_dtype == x.dtype:
        return operator(tape, out, x, "multipliers backward")
    return operator(tape, out, x, "to backward", temporaries=[(x.shape, promoted_dtype, "multipliers backward")])


def _project(ctx: Context, tensors: dict[str, ParameterTensor], name: str, x: Value) -> Value:
    tensor = tensors[name + ".weight"]
    return linear(ctx.tape, x, ctx.weights(tensor, name + ".bias" in tensors), tensor.name)


def _gated_norm(ctx: Context, mixer: Mixer, tensors: dict[str, ParameterTensor], x: Value, gate: Value) -> Value:
    """Apply MambaRMSNormGated to the scan's output, [tokens, inner width].

    The gate's silu multiplies before the RMSNorm, or after it for a ``NormFirstMixer``. Without a norm (Falcon-H1 by
    default) only the gate multiplies.
    """
    tape = ctx.tape
    input_dtype = x.dtype
    if "norm.weight" not in tensors:
        return mul(tape, x, unary(tape, gate, "silu"))
    x = cast(tape, x, "fp32")
    if not isinstance(mixer, NormFirstMixer):
        x = mul(tape, x, unary(tape, cast(tape, gate, "fp32"), "silu"))
    rstd = unary(tape, shift(tape, mean_rows(tape, power(tape, x))), "rsqrt")
    x = mul(tape, x, rstd)
    weight = tape.parameter(ctx.parameter(tensors["norm.weight"].name, (x.shape[-1],)))
    x = mul(tape, weight, x if isinstance(mixer, FalconH1Mixer) else cast(tape, x, input_dtype))
    if isinstance(mixer, NormFirstMixer):
        x = mul(tape, x, unary(tape, cast(tape, gate, "fp32"), "silu"))
    return x


def _chunk_scan(
    tape: Tape,
    scan: Scan,
    tokens: int,
    ssm_input: Value,
    time_step: tuple[Value, Value],
    decay_and_skip: tuple[Value, Value],
    b_and_c: tuple[Value, Value],
) -> Value:
    """Replay mamba2_chunk_scan, einsum by einsum, and return the scan's output, [tokens, heads * head width].

    ``scan``: sizes. ``ssm_input``: [tokens, heads * head width]. ``time_step``: the time steps [tokens, heads] and
    their bias [heads]. ``decay_and_skip``: decay and skip factor (D) of each head. ``b_and_c``: B and C, [batch,
    groups, sequence, state size]. All is fp32, except products under autocast. Tensors live as long as the variables of
    that function. Source: transformers 5.23 models/mamba2/modeling_mamba2.py.
    """
    (decay_rate, skip_factor), (input_matrix, output_matrix) = decay_and_skip, b_and_c
    padded = scan.batch * scan.chunks * scan.chunk
    heads, head_width, state_size = scan.heads, scan.width, scan.state
    dt = add_bias(tape, *time_step)
    dt = clamp(tape, unary(tape, cast(tape, dt, "fp32") if tape.autocast else dt, "softplus"), bounds=2)
    ssm_input = cast(tape, ssm_input, "fp32")
    input_matrix, output_matrix = (
        repeat_kv(tape, cast(tape, t, "fp32"), heads, copies=True) for t in (input_matrix, output_matrix)
    )
    residual = mul(tape, pad(tape, ssm_input, (padded, heads * head_width)), skip_factor)
    ssm_input = mul(tape, ssm_input, cast(tape, dt, "fp32"))
    decay = mul(tape, cast(tape, dt, "fp32"), decay_rate)
    widths = (heads * head_width, heads, heads * state_size, heads * state_size)
    ssm_input, decay, input_matrix, output_matrix = (
        pad(tape, t, (padded, size))
        for t, size in zip((ssm_input, decay, input_matrix, output_matrix), widths, strict=True)
    )
    cumulative_decay = scale(tape, decay, "cumsum")
    decay_between_tokens = unary(
        tape, _segment_sum(tape, decay, (scan.batch, heads * scan.chunks, scan.chunk, scan.chunk)), "exp"
    )
    c_b_products = _einsum(tape, scan, output_matrix, input_matrix, scan.chunk, "queries @ keys")
    decayed_products = mul(tape, c_b_products, decay_between_tokens)
    diagonal = _einsum(tape, scan, decayed_products, ssm_input, head_width, "weights @ state", copied=(False, True))
    decay_to_chunk_end = unary(tape, scale(tape, cumulative_decay), "exp")
    decayed_b = mul(tape, input_matrix, decay_to_chunk_end)
    left, right = copy(tape, decayed_b, "einsum reshape"), copy(tape, ssm_input, "einsum reshape")
    chunk_states = batched(
        tape, left, right, (scan.batch, scan.chunks * heads, head_width, state_size), "states of chunks"
    )
    del left, right
    states_shape = (scan.batch, scan.chunks + 1, heads, head_width, state_size)
    zeros = tape.value((scan.batch, heads, head_width, state_size), "fp32", "zeros_like")
    all_states = cat(tape, (chunk_states, zeros), states_shape, "cat states")
    all_states.dtype = chunk_states.dtype
    del chunk_states  # `previous_states`, the zeros, is a variable to the end
    decay_between_chunks = tape.value((scan.batch, heads, scan.chunks + 1, scan.chunks + 1), "fp32", "decay of chunks")
    right = copy(tape, all_states, "einsum reshape")
    passed_states = _initial_states(tape, decay_between_chunks, right, states_shape)
    del all_states, right
    initial_states = select(tape, passed_states, (scan.batch, scan.chunks * heads, head_width, state_size))
    decay_from_chunk_start = unary(tape, cumulative_decay, "exp")
    left = copy(tape, output_matrix, "einsum reshape")
    right = copy(tape, initial_states, "einsum reshape") if scan.chunks > 1 else initial_states
    from_earlier_chunks = batched(tape, left, right, scan.wide(head_width), "queries @ states")
    del left, right
    off_diagonal = mul(
        tape, from_earlier_chunks.view(padded, heads * head_width), decay_from_chunk_start.view(padded, heads)
    )
    out = add(tape, diagonal.view(padded, heads * head_width), off_diagonal)
    out = copy(tape, out, "contiguous")
    out = add(tape, out, residual)
    if padded != tokens:
        out = select(tape, out, (tokens, heads * head_width))
    del (
        c_b_products,
        from_earlier_chunks,
        diagonal,
        off_diagonal,
        residual,
        dt,
        decay_between_tokens,
        decayed_products,
        decayed_b,
        passed_states,
        initial_states,
        decay_between_chunks,
        zeros,
    )
    return out


def _einsum(
    tape: Tape,
    scan: Scan,
    left_factor: Value,
    right_factor: Value,
    columns: int,
    label: str,
    copied: tuple[bool, bool] = (True, True),
) -> Value:
    """Multiply two matrices for each chunk and head, and return [batch, chunks * heads, chunk, ``columns``].

    ``copied``: whether einsum copies the left and the right factor, because their dimensions cannot be merged by a
    view.
    """
    left = copy(tape, left_factor, "einsum reshape") if copied[0] else left_factor
    right = copy(tape, right_factor, "einsum reshape") if copied[1] else right_factor
    return batched(tape, left, right, scan.wide(columns), label)


def _initial_states(tape: Tape, decay_between_chunks: Value, states: Value, shape: tuple[int, ...]) -> Value:
    """Compute the state at the start of each chunk: ``decay_between_chunks`` times the ``states`` of all chunks.

    Both factors are saved. ``shape``: of the states, [batch, chunks + 1, heads, head width, state size].
    """
    if tape.autocast:
        states = cast(tape, states, tape.autocast)
    out = tape.value(shape, states.dtype, "states before chunks")
    dtype = states.dtype
    return operator(tape, out, states, (shape, dtype, "states backward"), saves=(decay_between_chunks, states))


def _segment_sum(tape: Tape, decay: Value, shape: tuple[int, ...]) -> Value:
    """Sum the decays between all pairs of tokens of a chunk: masked_fill, cumsum, masked_fill.

    ``shape``: [batch, heads * chunks, chunk, chunk]. Backward of cumsum flips, sums and flips back.
    """
    masked = tape.value(shape, decay.dtype, "masked_fill")
    dtype = decay.dtype
    masked = operator(tape, masked, decay, "sum", temporaries=[(shape, dtype, "masked_fill backward")])
    summed = tape.value(shape, dtype, "cumsum")

    def cumsum_backward(grad: Storage) -> list[Storage | None]:
        """Backward of a cumulative sum: flip, sum, flip."""
        flipped, summed_grad = tape.new(shape, dtype, "flip"), tape.new(shape, dtype, "cumsum")
        input_grad = tape.new(shape, dtype, "flip")
        del flipped, summed_grad
        return [input_grad]

    summed = tape.record(summed, (masked,), cumsum_backward)
    out = scale(tape, summed, "masked_fill")
    del masked, summed
    return out
