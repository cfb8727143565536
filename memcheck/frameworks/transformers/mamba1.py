"""Mamba's first selective scan: a decay of each channel and state for every token.

Without mamba-ssm the scan is a Python loop over tokens, each of which leaves its state to the backward. With it, Mamba
and Falcon Mamba run in one autograd function, and Jamba in the scan's own.

Sources: transformers 5.23 models/mamba/modeling_mamba.py (MambaMixer, mamba_selective_scan),
models/falcon_mamba/modeling_falcon_mamba.py, models/jamba/modeling_jamba.py (JambaMambaMixer); mamba-ssm
ops/selective_scan_interface.py (MambaInnerFn with checkpoint_lvl 1, SelectiveScanFn) and
csrc/selective_scan/selective_scan.cpp (n_chunks of 2048 tokens).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear, product
from memcheck.autograd.modules import l2_norm_pieces, rms_norm_pieces
from memcheck.autograd.operator import add, add_bias, cast, convert_weight, copy, mul, operator, scale, unary
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div, promote
from memcheck.frameworks.transformers.delta_rule import convolve
from memcheck.models.types import Mixer, ParameterTensor
from memcheck.record import Record

SCAN_CHUNK = 2048
"""Tokens between the states that the fused scan keeps."""


class Channels(Record):
    """Sizes of a selective scan: channels, rank of the time-step projection, states per channel."""

    channels: int
    time_step_rank: int
    states_per_channel: int


def mamba1_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Run Mamba in PyTorch operations: in_proj, convolution, x_proj, the scan token by token, out_proj.

    ``x``: [tokens, hidden]; so is what is returned. Variables of the module's forward live to its end. Source:
    transformers 5.23 models/mamba/modeling_mamba.py, MambaMixer.
    """
    tape, sizes, tensors = ctx.tape, _sizes(ctx, mixer), _named(mixer)
    dtype = x.dtype
    projected = _project(ctx, tensors, "in_proj", x)
    del x
    decay_rate = scale(tape, _decay(ctx, tensors, sizes), "neg")
    channels = (ctx.tokens, sizes.channels)
    ssm_input, gate = tape.views(projected, channels, channels)
    ssm_input = convolve(ctx, tensors["conv1d.weight"], tensors.get("conv1d.bias"), ssm_input, "silu")
    time_step, b, c = _time_steps_b_c(ctx, mixer, tensors, ssm_input, sizes)
    time_step_bias = _vector(ctx, tensors["dt_proj.bias"])
    skip_factor = cast(tape, _vector(ctx, tensors["D"]), "fp32")
    out = scan(ctx, sizes, ssm_input, (time_step, time_step_bias), (decay_rate, skip_factor), (b, c))
    out = mul(tape, out, unary(tape, gate, "silu"))
    result = _project(ctx, tensors, "out_proj", rows_of_tokens(ctx, cast(tape, out, dtype)))
    del projected, decay_rate, ssm_input, gate, time_step, b, c, out
    return result


def mamba1_fused(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Run Mamba with mamba-ssm: MambaInnerFn computes everything from in_proj's output to out_proj's.

    ``x``: [tokens, hidden]. Jamba normalises in between, so that it runs the parts one by one.
    """
    tape, sizes, tensors = ctx.tape, _sizes(ctx, mixer), _named(mixer)
    projected = _project(ctx, tensors, "in_proj", x)
    del x
    decay_rate = scale(tape, _decay(ctx, tensors, sizes), "neg")
    if "dt_layernorm.weight" in tensors:
        return _jamba_in_parts(ctx, mixer, tensors, projected, decay_rate, sizes)
    names = ("conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "out_proj.weight", "out_proj.bias")
    inner_weights = [tensors[name] for name in (*names, "D", "dt_proj.bias") if name in tensors]
    out = _fused_inner(
        ctx, sizes, projected, decay_rate, [tape.parameter(ctx.parameter(t.name, t.shape)) for t in inner_weights]
    )
    del projected
    return out


def _fused_inner(ctx: Context, sizes: Channels, projected: Value, decay_rate: Value, weights: list[Value]) -> Value:
    """Run mamba-ssm's MambaInnerFn: from in_proj's output ``projected``, [tokens, 2 * channels], to [tokens, hidden].

    ``weights``: of convolution, x_proj, dt_proj, out_proj and so on. With checkpoint_lvl 1 backward computes the
    convolution and the time steps again; all else is saved. Source: ops/selective_scan_interface.py.
    """
    tape, dtype, channels = ctx.tape, projected.dtype, (ctx.tokens, sizes.channels)
    xz_shape, x_dbl_shape = projected.shape, (ctx.tokens, sizes.time_step_rank + 2 * sizes.states_per_channel)
    b_c_shape, states_shape = (ctx.tokens, sizes.states_per_channel), _scan_states(ctx, sizes)
    xz = tape.new(xz_shape, dtype, "contiguous xz")
    convolved = tape.new(channels, dtype, "conv1d")
    x_dbl = tape.new(x_dbl_shape, dtype, "x_dbl")
    time_step = tape.new(channels, dtype, "delta")
    b, c = (tape.new(b_c_shape, dtype, "contiguous B, C") for _ in range(2))
    scanned, chunks = tape.new(channels, dtype, "scan output"), tape.new(states_shape, "fp32", "states of chunks")
    gated = tape.new(channels, dtype, "gated output")
    del convolved, time_step
    out = tape.value((ctx.tokens, ctx.hidden), dtype, "out_proj")
    del gated
    inputs = (projected, decay_rate, *weights)
    projected_needs_grad = projected.needs_grad
    other_specs = [(v.shape, v.dtype) if v.needs_grad else None for v in (decay_rate, *weights)]

    def inner_backward(grad: Storage) -> list[Storage | None]:
        """Recompute the convolution and delta, then return the gradients of xz and of the weights
        (``MambaInnerFn.backward``).
        """
        recomputed = [tape.new(channels, dtype, name) for name in ("conv1d", "delta")]
        xz_grad = tape.new(xz_shape, dtype, "xz backward")
        gated_grad = tape.new(channels, dtype, "out_proj backward")
        parts = [tape.new(channels, dtype, name) for name in ("conv1d backward", "delta backward", "gated output")]
        b_c_grads = [tape.new(b_c_shape, "fp32", "B, C backward") for _ in range(2)]
        x_dbl_grad = tape.new(x_dbl_shape, dtype, "x_dbl backward")
        results = [tape.new(*spec, "selective scan backward") if spec else None for spec in other_specs]
        del recomputed, gated_grad, parts, b_c_grads, x_dbl_grad
        return [xz_grad if projected_needs_grad else None, *results]

    return tape.record(out, inputs, inner_backward, saves=(xz, x_dbl, b, c, scanned, chunks, decay_rate.storage))


def _jamba_in_parts(
    ctx: Context,
    mixer: Mixer,
    tensors: dict[str, ParameterTensor],
    projected: Value,
    decay_rate: Value,
    sizes: Channels,
) -> Value:
    """Run Jamba's mixer with fused kernels: causal-conv1d, x_proj, three norms, SelectiveScanFn, out_proj.

    ``projected``: in_proj's output, [tokens, 2 * channels]. ``decay_rate``: ``-exp(A_log)``. Returns [tokens, hidden].
    Variables of its forward hold all tensors until it returns.
    """
    tape = ctx.tape
    channels = (ctx.tokens, sizes.channels)
    ssm_input, gate = tape.views(projected, channels, channels)
    ssm_input = convolve(ctx, tensors["conv1d.weight"], tensors.get("conv1d.bias"), ssm_input, "silu", fused=True)
    time_step, b, c = _time_steps_b_c(ctx, mixer, tensors, ssm_input, sizes)
    weights = [_vector(ctx, tensors[name]) for name in ("D", "dt_proj.bias")]
    out = fused_scan(ctx, sizes, (ssm_input, time_step, decay_rate, b, c, gate, *weights))
    del weights
    result = _project(ctx, tensors, "out_proj", out)
    del projected, decay_rate, ssm_input, gate, time_step, b, c, out
    return result


def fused_scan(ctx: Context, sizes: Channels, inputs: tuple[Value, ...]) -> Value:
    """Replay mamba-ssm's SelectiveScanFn, and return the gated output, [tokens, channels].

    ``inputs``: SSM input, time steps, decays, B, C, the gate, then any further weights. The function keeps contiguous
    copies of all but the decays, the scan's output, and the states at every 2048th token.
    """
    tape, channels = ctx.tape, (ctx.tokens, sizes.channels)
    ssm_input, time_step, decay_rate, b, c, gate = inputs[:6]
    copies = tuple(tape.new(v.shape, v.dtype, "contiguous") for v in (ssm_input, time_step, b, c, gate))
    scanned = tape.new(channels, ssm_input.dtype, "scan output")
    chunks = tape.new(_scan_states(ctx, sizes), "fp32", "states of chunks")
    out = tape.value(channels, ssm_input.dtype, "gated output")
    contiguous_grad, saves = (channels, ssm_input.dtype, "contiguous"), (*copies, scanned, chunks, decay_rate.storage)
    return operator(tape, out, inputs, "selective scan backward", saves=saves, temporaries=[contiguous_grad])


def _time_steps_b_c(
    ctx: Context, mixer: Mixer, tensors: dict[str, ParameterTensor], ssm_input: Value, sizes: Channels
) -> tuple[Value, Value, Value]:
    """Compute the time steps [tokens, channels], B and C [tokens, states] from one projection of the SSM input.

    ``ssm_input``: after the convolution. Falcon Mamba and Jamba apply a norm to each of the three projections.
    """
    tape, tokens = ctx.tape, ctx.tokens
    projected = _project(ctx, tensors, "x_proj", rows_of_tokens(ctx, ssm_input))
    parts = tape.views(
        projected,
        (tokens, sizes.time_step_rank),
        (tokens, sizes.states_per_channel),
        (tokens, sizes.states_per_channel),
    )
    del projected
    if mixer.normed_inputs:
        for i, name in enumerate(("dt_layernorm", "b_layernorm", "c_layernorm")):
            weight = tensors.get(name + ".weight")
            if weight is None:
                parts[i] = l2_norm_pieces(tape, parts[i])
            else:
                parts[i] = rms_norm_pieces(tape, parts[i], ctx.parameter(weight.name, weight.shape))
    # the code multiplies by `dt_proj.weight` itself, so that an adapter of the module has no effect
    weight = tensors["dt_proj.weight"]
    time_step = product(tape, parts[0], tape.parameter(ctx.parameter(weight.name, weight.shape)), weight.name)
    return time_step, parts[1], parts[2]


def scan(
    ctx: Context,
    sizes: Channels,
    ssm_input: Value,
    time_step: tuple[Value, Value],
    decay_and_skip: tuple[Value, Value],
    b_and_c: tuple[Value, Value],
) -> Value:
    """Replay mamba_selective_scan in PyTorch operators, token by token, and return [tokens, channels].

    ``ssm_input``: [tokens, channels]. ``time_step``: the steps and their bias. ``decay_and_skip``: decay rates
    [channels, states] and the skip factor D [channels]. ``b_and_c``: B and C, [tokens, states] each.
    """
    tape = ctx.tape
    (decay_rate, skip_factor), (input_matrix, output_matrix) = decay_and_skip, b_and_c
    per_state = (ctx.tokens, sizes.channels, sizes.states_per_channel)
    steps = add_bias(tape, *time_step)
    steps = unary(tape, cast(tape, steps, "fp32") if tape.autocast else steps, "softplus")
    decays = unary(tape, _broadcast_product(tape, decay_rate, steps, per_state), "exp")
    discrete_b = _broadcast_product(tape, steps, cast(tape, input_matrix, "fp32"), per_state)
    state_inputs = mul(tape, discrete_b, cast(tape, ssm_input, "fp32"))
    out, variables = _token_loop(ctx, sizes, decays, state_inputs, output_matrix)
    out = add(tape, out, mul(tape, ssm_input, skip_factor))
    del steps, decays, discrete_b, state_inputs, variables
    return out


def rows_of_tokens(ctx: Context, x: Value) -> Value:
    """Return [batch, channels, tokens] as rows of tokens for a linear layer, which copies it if there are several
    sequences.
    """
    return copy(ctx.tape, x, "reshape") if ctx.batch > 1 else x


def _token_loop(
    ctx: Context, sizes: Channels, decays: Value, state_inputs: Value, c: Value
) -> tuple[Value, list[Storage]]:
    """Run ``state = decay * state + input`` token by token, multiply each state by C, and stack the products.

    ``decays``, ``state_inputs``: [tokens, channels, states]. ``c``: [tokens, states]. All states but the last are
    saved, and a copy of each in the dtype of C; if C is fp32, all states. Backward writes each token's gradient into
    zeros of all tokens' size, and adds it to the gradients of later tokens: the third such tensor is the peak, when
    nearly all states are still alive. Returns [tokens, channels], and storages that variables hold: the products and
    the last state.
    """
    tape, tokens = ctx.tape, ctx.sequence
    dtype, state_dtype = c.dtype, decays.dtype
    state_shape = (ctx.batch, sizes.channels, sizes.states_per_channel)
    output_shape = (ctx.batch, sizes.channels)
    all_states_shape = decays.shape
    # backward frees the states of the last two tokens before its peak, and all others after it
    early_shape, late_shape = (max(tokens - 2, 0), *state_shape), (min(tokens, 2), *state_shape)
    zeros = tape.new(state_shape, dtype, "state")
    records = tape.frame is None or tape.frame.recomputed is not None  # False in a checkpoint's first pass
    keeps_graph = tape.grad_enabled and decays.needs_grad and records
    copy_dtypes = [dtype] if dtype != state_dtype else []
    late_states: list[Storage] = []
    early_states: list[Storage] = []
    if keeps_graph:
        late_states.append(tape.new(late_shape, dtype, "states"))
        late_states += [tape.new(state_shape, state_dtype, "states") for _ in copy_dtypes]
        early_states += [tape.new(early_shape, saved_dtype, "states") for saved_dtype in (state_dtype, *copy_dtypes)]
    products = tape.new((tokens, *output_shape), dtype, "state @ C")
    state = tape.new(state_shape, state_dtype, "state") if copy_dtypes or not keeps_graph else late_states[0]
    next_state = tape.new(state_shape, state_dtype, "decay * state"), tape.new(state_shape, state_dtype, "state")
    del next_state
    out = tape.value((ctx.tokens, sizes.channels), dtype, "stack")
    c_shape = c.shape

    saved = [decays.storage, c.storage, zeros, *late_states, *early_states]

    def loop_backward(grad: Storage) -> list[Storage | None]:
        """Allocate what the backward of the loop over tokens holds at its peak, and return the gradients of its
        inputs.
        """
        c_grads = [tape.new(c_shape, dtype, "select backward") for _ in range(2)]
        state_grad = tape.new(state_shape, dtype, "state @ C backward")
        fp32_state_grad = tape.new(state_shape, state_dtype, "to backward") if copy_dtypes else None
        del state_grad
        input_grads = tape.new(all_states_shape, state_dtype, "select backward")
        decay_grads = tape.new(all_states_shape, state_dtype, "select backward")
        del saved[3 : 3 + len(late_states)]  # the late states
        third_grads = tape.new(all_states_shape, state_dtype, "select backward")
        del third_grads, fp32_state_grad
        saved.clear()
        return [decay_grads, input_grads, c_grads[0]]

    return tape.record(out, (decays, state_inputs, c), loop_backward, saves=saved), [products, state]


def _broadcast_product(tape: Tape, left: Value, right: Value, shape: tuple[int, ...]) -> Value:
    """Multiply two tensors that broadcast to ``shape``: ``left * right``.

    Each factor is saved if the other needs a gradient. A gradient is computed in the full shape, and then summed to its
    factor's shape. Both full products are made before the first sum, and each is freed after its own.
    """
    dtype = promote(left.dtype, right.dtype)
    out = tape.value(shape, dtype, "mul")
    saved = (left.storage if right.needs_grad else None, right.storage if left.needs_grad else None)
    grad_specs = [(v.shape, v.dtype) if v.needs_grad else None for v in (left, right)]

    def mul_backward(grad: Storage) -> list[Storage | None]:
        """Make both gradients in the broadcast shape, then sum each to the shape of its factor."""
        products = [tape.new(shape, dtype, "mul backward") if spec else None for spec in grad_specs]
        gradients: list[Storage | None] = []
        for i, spec in enumerate(grad_specs):
            if spec is None:
                gradients.append(None)
                continue
            factor_shape, factor_dtype = spec
            summed = tape.new(factor_shape, dtype, "sum")
            products[i] = None  # the last reference: the product is freed before the next sum
            is_cast = factor_dtype != dtype
            gradients.append(tape.new(factor_shape, factor_dtype, "to backward") if is_cast else summed)
        return gradients

    return tape.record(out, (left, right), mul_backward, saves=saved)


def _decay(ctx: Context, tensors: dict[str, ParameterTensor], sizes: Channels) -> Value:
    """Compute ``exp(A_log.float())``, the decay rate of each channel and state: [channels, states] in fp32."""
    tape = ctx.tape
    a_log = ctx.parameter(tensors["A_log"].name, (sizes.channels, sizes.states_per_channel))
    return unary(tape, convert_weight(tape, tape.parameter(a_log), "fp32"), "exp")


def _vector(ctx: Context, tensor: ParameterTensor) -> Value:
    return ctx.tape.parameter(ctx.parameter(tensor.name, (ceil_div(tensor.shape[0], ctx.tp),)))


def _scan_states(ctx: Context, sizes: Channels) -> tuple[int, ...]:
    return (ctx.batch, sizes.channels, ceil_div(ctx.sequence, SCAN_CHUNK), 2 * sizes.states_per_channel)


def _sizes(ctx: Context, mixer: Mixer) -> Channels:
    rank = _named(mixer)["dt_proj.weight"].shape[1]
    return Channels(ceil_div(mixer.heads, ctx.tp) * mixer.head_dim, rank, mixer.key_dim)


def _named(mixer: Mixer) -> dict[str, ParameterTensor]:
    return {t.name.partition(".")[2]: t for t in mixer.tensors}


def _project(ctx: Context, tensors: dict[str, ParameterTensor], name: str, x: Value) -> Value:
    tensor = tensors[name + ".weight"]
    return linear(ctx.tape, x, ctx.weights(tensor, name + ".bias" in tensors), tensor.name)
