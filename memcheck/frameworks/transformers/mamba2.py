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
    """Sizes of a chunked scan on this rank."""

    tokens: int
    """Tokens of all sequences, without padding."""
    batch: int
    """Sequences."""
    heads: int
    chunks: int
    """Chunks per sequence, the last of which is padded."""
    chunk_tokens: int
    """Tokens per chunk."""
    head_width: int
    state_size: int

    @property
    def padded_tokens(self) -> int:
        """Tokens of all chunks."""
        return self.batch * self.chunks * self.chunk_tokens

    def matrix_shape(self, columns: int) -> tuple[int, ...]:
        """Return the shape of one matrix per chunk and head: [batch, chunks * heads, tokens of a chunk, columns]."""
        return (self.batch, self.chunks * self.heads, self.chunk_tokens, columns)


class ScanInputs(Record):
    """The arguments of mamba2_chunk_scan."""

    ssm_input: Value
    """[tokens, heads * head width]."""
    time_step: Value
    """[tokens, heads]."""
    time_step_bias: Value
    """[heads]."""
    decay_rate: Value
    """A, [heads]."""
    skip_factor: Value
    """D, [heads]."""
    input_matrix: Value
    """B, [batch, groups, sequence, state size]."""
    output_matrix: Value
    """C, [batch, groups, sequence, state size]."""


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
    scan = Scan(
        tokens=rows,
        batch=ctx.batch,
        heads=heads,
        chunks=ceil_div(ctx.sequence, mixer.chunk),
        chunk_tokens=mixer.chunk,
        head_width=mixer.head_dim,
        state_size=mixer.key_dim,
    )
    skip_factor = tape.parameter(ctx.parameter("D", (heads,)))
    time_step_bias = tape.parameter(ctx.parameter("dt_bias", (heads,)))
    group_shape = (ctx.batch, groups, ctx.sequence, mixer.key_dim)
    out = _chunk_scan(
        tape,
        scan,
        ScanInputs(
            ssm_input=ssm_input,
            time_step=time_step,
            time_step_bias=time_step_bias,
            decay_rate=decay_rate,
            skip_factor=skip_factor,
            input_matrix=input_matrix.view(*group_shape),
            output_matrix=output_matrix.view(*group_shape),
        ),
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


class ChunkedTensors(Record):
    """What mamba2_chunk_scan multiplies chunk by chunk: fp32 tensors that are padded to whole chunks."""

    ssm_input: Value
    """The input times the time step, [padded tokens, heads * head width]."""
    decay: Value
    """Logarithm of each token's decay, [padded tokens, heads]."""
    input_matrix: Value
    """B of each head, [padded tokens, heads * state size]."""
    output_matrix: Value
    """C of each head, [padded tokens, heads * state size]."""


def _chunk_scan(tape: Tape, scan: Scan, inputs: ScanInputs) -> Value:
    """Replay mamba2_chunk_scan, einsum by einsum, and return the scan's output, [tokens, heads * head width].

    All is fp32, except products under autocast. Tensors live as long as the variables of that function. Source:
    transformers 5.23 models/mamba2/modeling_mamba2.py.
    """
    time_step = add_bias(tape, inputs.time_step, inputs.time_step_bias)
    time_step = unary(tape, cast(tape, time_step, "fp32") if tape.autocast else time_step, "softplus")
    time_step = clamp(tape, time_step, bounds=2)
    chunked, residual = _in_chunks(tape, scan, inputs, time_step)
    cumulative_decay = scale(tape, chunked.decay, "cumsum")
    variables: list[Value] = []  # of mamba2_chunk_scan: each step adds its own, and all live until this returns
    diagonal = _output_within_chunks(tape, scan, chunked, variables)
    initial_states = _states_before_chunks(tape, scan, chunked, cumulative_decay, variables)
    off_diagonal = _output_of_earlier_chunks(tape, scan, chunked, cumulative_decay, initial_states, variables)
    out = add(tape, diagonal.view(*off_diagonal.shape), off_diagonal)
    out = copy(tape, out, "contiguous")
    out = add(tape, out, residual)
    if scan.padded_tokens == scan.tokens:
        return out
    return select(tape, out, (scan.tokens, scan.heads * scan.head_width))


def _in_chunks(tape: Tape, scan: Scan, inputs: ScanInputs, time_step: Value) -> tuple[ChunkedTensors, Value]:
    """Multiply the input and the decay by the time step, and pad all tensors of the scan to whole chunks.

    ``time_step``: [tokens, heads]. The second result is ``D_residual``, the padded input times the skip factor.
    """
    heads = scan.heads
    ssm_input = cast(tape, inputs.ssm_input, "fp32")
    input_matrix, output_matrix = (
        repeat_kv(tape, cast(tape, matrix, "fp32"), heads, copies=True)
        for matrix in (inputs.input_matrix, inputs.output_matrix)
    )
    input_shape = (scan.padded_tokens, heads * scan.head_width)
    residual = mul(tape, pad(tape, ssm_input, input_shape), inputs.skip_factor)
    ssm_input = mul(tape, ssm_input, cast(tape, time_step, "fp32"))
    decay = mul(tape, cast(tape, time_step, "fp32"), inputs.decay_rate)
    matrix_shape = (scan.padded_tokens, heads * scan.state_size)
    chunked = ChunkedTensors(
        ssm_input=pad(tape, ssm_input, input_shape),
        decay=pad(tape, decay, (scan.padded_tokens, heads)),
        input_matrix=pad(tape, input_matrix, matrix_shape),
        output_matrix=pad(tape, output_matrix, matrix_shape),
    )
    return chunked, residual


def _output_within_chunks(tape: Tape, scan: Scan, chunked: ChunkedTensors, variables: list[Value]) -> Value:
    """Compute ``Y_diag``, what the tokens of a chunk contribute to its output: [batch, chunks * heads, chunk, width].

    ``variables``: those of mamba2_chunk_scan, to which this step adds.
    """
    decay_between_tokens = unary(tape, _segment_sum(tape, chunked.decay, scan.matrix_shape(scan.chunk_tokens)), "exp")
    products = _einsum(
        tape, chunked.output_matrix, chunked.input_matrix, scan.matrix_shape(scan.chunk_tokens), "queries @ keys"
    )
    decayed_products = mul(tape, products, decay_between_tokens)
    diagonal = _einsum(
        tape,
        decayed_products,
        chunked.ssm_input,
        scan.matrix_shape(scan.head_width),
        "weights @ state",
        views_left=True,
    )
    variables += [products, decay_between_tokens, decayed_products]
    return diagonal


def _states_before_chunks(
    tape: Tape, scan: Scan, chunked: ChunkedTensors, cumulative_decay: Value, variables: list[Value]
) -> Value:
    """Compute the state at the start of each chunk, [batch, chunks * heads, head width, state size].

    Each chunk's own state decays to its end; the states of earlier chunks decay from chunk to chunk.
    ``cumulative_decay``: [padded tokens, heads]. ``variables``: those of mamba2_chunk_scan, to which this step adds.
    """
    state_shape = (scan.batch, scan.chunks * scan.heads, scan.head_width, scan.state_size)
    decay_to_chunk_end = unary(tape, scale(tape, cumulative_decay), "exp")
    decayed_b = mul(tape, chunked.input_matrix, decay_to_chunk_end)
    chunk_states = _einsum(tape, decayed_b, chunked.ssm_input, state_shape, "states of chunks")
    all_states_shape = (scan.batch, scan.chunks + 1, scan.heads, scan.head_width, scan.state_size)
    zeros = tape.value((scan.batch, scan.heads, scan.head_width, scan.state_size), "fp32", "zeros_like")
    all_states = cat(tape, (chunk_states, zeros), all_states_shape, "cat states")
    all_states.dtype = chunk_states.dtype  # the einsum below copies what autocast has cast
    del chunk_states  # `states = torch.cat(...)` gives its name away; `previous_states`, the zeros, keeps its own
    decay_between_chunks = tape.value(
        (scan.batch, scan.heads, scan.chunks + 1, scan.chunks + 1), "fp32", "decay of chunks"
    )
    copied_states = copy(tape, all_states, "einsum reshape")
    passed_states = _pass_states_on(tape, decay_between_chunks, copied_states, all_states_shape)
    del all_states, copied_states
    variables += [zeros, decay_to_chunk_end, decayed_b, decay_between_chunks, passed_states]
    return select(tape, passed_states, state_shape)


def _output_of_earlier_chunks(
    tape: Tape,
    scan: Scan,
    chunked: ChunkedTensors,
    cumulative_decay: Value,
    initial_states: Value,
    variables: list[Value],
) -> Value:
    """Compute ``Y_off``, what the chunks before contribute to each token's output: [padded tokens, heads * head width].

    ``cumulative_decay``: [padded tokens, heads]. ``initial_states``: [batch, chunks * heads, head width, state size].
    ``variables``: those of mamba2_chunk_scan, to which this step adds.
    """
    decay_from_chunk_start = unary(tape, cumulative_decay, "exp")
    products = _einsum(
        tape,
        chunked.output_matrix,
        initial_states,
        scan.matrix_shape(scan.head_width),
        "queries @ states",
        views_right=scan.chunks == 1,
    )
    variables += [decay_from_chunk_start, initial_states, products]
    flat_products = products.view(scan.padded_tokens, scan.heads * scan.head_width)
    return mul(tape, flat_products, decay_from_chunk_start.view(scan.padded_tokens, scan.heads))


def _einsum(
    tape: Tape,
    left: Value,
    right: Value,
    shape: tuple[int, ...],
    label: str,
    *,
    views_left: bool = False,
    views_right: bool = False,
) -> Value:
    """Multiply two matrices for each chunk and head by ``torch.einsum``, and return a result of ``shape``.

    einsum merges batch, chunks and heads into one dimension, which copies a factor unless a view of it will do:
    ``views_left``, ``views_right``. A copy is freed when einsum returns, unless backward needs it.
    """
    left_factor = left if views_left else copy(tape, left, "einsum reshape")
    right_factor = right if views_right else copy(tape, right, "einsum reshape")
    return batched(tape, left_factor, right_factor, shape, label)


def _pass_states_on(tape: Tape, decay_between_chunks: Value, states: Value, shape: tuple[int, ...]) -> Value:
    """Compute the state at the start of each chunk: ``decay_between_chunks`` times the ``states`` of all chunks.

    Both factors are saved. ``shape``: of the states, [batch, chunks + 1, heads, head width, state size].
    """
    if tape.autocast:
        states = cast(tape, states, tape.autocast)
    out = tape.value(shape, states.dtype, "states before chunks")
    return operator(tape, out, states, (shape, states.dtype, "states backward"), saves=(decay_between_chunks, states))


def _segment_sum(tape: Tape, decay: Value, shape: tuple[int, ...]) -> Value:
    """Sum the decays between all pairs of tokens of a chunk: masked_fill, cumsum, masked_fill.

    ``shape``: [batch, heads * chunks, chunk, chunk]. Backward of cumsum flips, sums and flips back.
    """
    masked = tape.value(shape, decay.dtype, "masked_fill")
    dtype = decay.dtype
    masked = operator(tape, masked, decay, "sum", temporaries=[(shape, dtype, "masked_fill backward")])
    summed = tape.value(shape, dtype, "cumsum")

    def cumsum_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradient of a cumulative sum's input: the gradient flipped, summed and flipped back."""
        flipped, summed_grad = tape.new(shape, dtype, "flip"), tape.new(shape, dtype, "cumsum")
        input_grad = tape.new(shape, dtype, "flip")
        del flipped, summed_grad
        return [input_grad]

    summed = tape.record(summed, (masked,), cumsum_backward)
    out = scale(tape, summed, "masked_fill")
    del masked, summed
    return out
