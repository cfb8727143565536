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
from memcheck.autograd.elementwise import add, add_bias, cast, convert_weight, copy, mul, scale, unary
from memcheck.autograd.matrix import linear, product
from memcheck.autograd.norm import l2_norm_pieces, rms_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.frameworks.transformers.scan import convolve
from memcheck.models.types import Mixer, ParameterTensor
from memcheck.record import Record

SCAN_CHUNK = 2048
"""Tokens between the states that the fused scan keeps."""


class Channels(Record):
    """Channels, rank of the time steps, states of a channel."""

    inner: int
    rank: int
    state: int


def mamba1_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """in_proj, convolution, x_proj, the scan token by token, out_proj; variables live to the module's end."""
    tape, sizes, tensors = ctx.tape, _sizes(ctx, mixer), _named(mixer)
    dtype = x.dtype
    projected = _project(ctx, tensors, "in_proj", x)
    del x
    rate = scale(tape, _decay(ctx, tensors, sizes), "neg")
    half = (ctx.tokens, sizes.inner)
    state, gate = tape.views(projected, half, half)
    state = convolve(ctx, tensors["conv1d.weight"], tensors.get("conv1d.bias"), state, "silu")
    step, keys, queries = _steps(ctx, mixer, tensors, state, sizes)
    bias = _vector(ctx, tensors["dt_proj.bias"])
    skip = cast(tape, _vector(ctx, tensors["D"]), "fp32")
    out = scan(ctx, sizes, state, (step, bias), (rate, skip), (keys, queries))
    out = mul(tape, out, unary(tape, gate, "silu"))
    result = _project(ctx, tensors, "out_proj", rows_of_tokens(ctx, cast(tape, out, dtype)))
    del projected, rate, state, gate, step, keys, queries, out
    return result


def mamba1_fused(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """One function from in_proj's output to out_proj's; Jamba normalises in between, and so runs the parts."""
    tape, sizes, tensors = ctx.tape, _sizes(ctx, mixer), _named(mixer)
    projected = _project(ctx, tensors, "in_proj", x)
    del x
    rate = scale(tape, _decay(ctx, tensors, sizes), "neg")
    if "dt_layernorm.weight" in tensors:
        return _in_parts(ctx, mixer, tensors, projected, rate, sizes)
    names = ("conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "out_proj.weight", "out_proj.bias")
    small = [tensors[name] for name in (*names, "D", "dt_proj.bias") if name in tensors]
    out = _inner(ctx, sizes, projected, rate, [tape.parameter(ctx.parameter(t.name, t.shape)) for t in small])
    del projected
    return out


def _inner(ctx: Context, sizes: Channels, projected: Value, rate: Value, weights: list[Value]) -> Value:
    """MambaInnerFn: the convolution and the time steps are made again in backward; the rest is kept."""
    tape, dtype, channels = ctx.tape, projected.dtype, (ctx.tokens, sizes.inner)
    both, mixed = projected.shape, (ctx.tokens, sizes.rank + 2 * sizes.state)
    shared, states = (ctx.tokens, sizes.state), _scan_states(ctx, sizes)
    joint = tape.new(both, dtype, "contiguous xz")
    convolved = tape.new(channels, dtype, "conv1d")
    small = tape.new(mixed, dtype, "x_dbl")
    step = tape.new(channels, dtype, "delta")
    keys, queries = (tape.new(shared, dtype, "contiguous B, C") for _ in range(2))
    scanned, chunks = tape.new(channels, dtype, "scan output"), tape.new(states, "fp32", "states of chunks")
    gated = tape.new(channels, dtype, "gated output")
    del convolved, step
    out = tape.value((ctx.tokens, ctx.hidden), dtype, "out_proj")
    del gated
    inputs = (projected, rate, *weights)
    found = [(v.shape, v.dtype) if v.origin is not None else None for v in inputs]

    def run(grad: Storage) -> list[Storage | None]:
        again = [tape.new(channels, dtype, name) for name in ("conv1d", "delta")]
        whole = tape.new(both, dtype, "xz backward")
        through = tape.new(channels, dtype, "out_proj backward")
        parts = [tape.new(channels, dtype, name) for name in ("conv1d backward", "delta backward", "gated output")]
        wide = [tape.new(shared, "fp32", "B, C backward") for _ in range(2)]
        joined = tape.new(mixed, dtype, "x_dbl backward")
        results = [tape.new(f[0], f[1], "selective scan backward") if f else None for f in found[1:]]
        del again, through, parts, wide, joined
        return [whole if found[0] else None, *results]

    return tape.record(out, inputs, run, saves=(joint, small, keys, queries, scanned, chunks, rate.storage))


def _in_parts(
    ctx: Context, mixer: Mixer, tensors: dict[str, ParameterTensor], projected: Value, rate: Value, sizes: Channels
) -> Value:
    """Jamba: causal-conv1d, x_proj, three norms, and SelectiveScanFn, which keeps contiguous copies of its inputs."""
    tape = ctx.tape
    half = (ctx.tokens, sizes.inner)
    state, gate = tape.views(projected, half, half)
    state = convolve(ctx, tensors["conv1d.weight"], tensors.get("conv1d.bias"), state, "silu", fused=True)
    step, keys, queries = _steps(ctx, mixer, tensors, state, sizes)
    weights = [_vector(ctx, tensors[name]) for name in ("D", "dt_proj.bias")]
    out = fused_scan(ctx, sizes, (state, step, rate, keys, queries, gate, *weights))
    del weights
    result = _project(ctx, tensors, "out_proj", out)
    del projected, rate, state, gate, step, keys, queries, out
    return result


def fused_scan(ctx: Context, sizes: Channels, inputs: tuple[Value, ...]) -> Value:
    """SelectiveScanFn of states, steps, decays, B, C, the gate, and what else it is given: keeps contiguous copies."""
    tape, half = ctx.tape, (ctx.tokens, sizes.inner)
    state, step, rate, keys, queries, gate = inputs[:6]
    copies = tuple(tape.new(v.shape, v.dtype, "contiguous") for v in (state, step, keys, queries, gate))
    scanned = tape.new(half, state.dtype, "scan output")
    chunks = tape.new(_scan_states(ctx, sizes), "fp32", "states of chunks")
    out = tape.value(half, state.dtype, "gated output")
    straight, saves = (half, state.dtype, "contiguous"), (*copies, scanned, chunks, rate.storage)
    return operator(tape, out, inputs, "selective scan backward", saves=saves, temporaries=[straight])


def _steps(
    ctx: Context, mixer: Mixer, tensors: dict[str, ParameterTensor], state: Value, sizes: Channels
) -> tuple[Value, Value, Value]:
    """Time steps of every channel, B and C: from one projection, normalised where the family does it."""
    tape, rows = ctx.tape, ctx.tokens
    joint = _project(ctx, tensors, "x_proj", rows_of_tokens(ctx, state))
    parts = tape.views(joint, (rows, sizes.rank), (rows, sizes.state), (rows, sizes.state))
    del joint
    if mixer.normed_inputs:
        for i, name in enumerate(("dt_layernorm", "b_layernorm", "c_layernorm")):
            weight = tensors.get(name + ".weight")
            if weight is None:
                parts[i] = l2_norm_pieces(tape, parts[i])
            else:
                parts[i] = rms_norm_pieces(tape, parts[i], ctx.parameter(weight.name, weight.shape))
    weight = tensors["dt_proj.weight"]  # multiplied by hand: an adapter of the module is passed over
    step = product(tape, parts[0], tape.parameter(ctx.parameter(weight.name, weight.shape)), weight.name)
    return step, parts[1], parts[2]


def scan(
    ctx: Context,
    sizes: Channels,
    state: Value,
    step: tuple[Value, Value],
    rate: tuple[Value, Value],
    shared: tuple[Value, Value],
) -> Value:
    """mamba_selective_scan. ``rate``: decays and the skip factor of each channel; ``shared``: B and C."""
    tape = ctx.tape
    every = (ctx.tokens, sizes.inner, sizes.state)
    dt = add_bias(tape, *step)
    dt = unary(tape, cast(tape, dt, "fp32") if tape.autocast else dt, "softplus")
    decays = unary(tape, _outer(tape, rate[0], dt, every), "exp")
    inputs = _outer(tape, dt, cast(tape, shared[0], "fp32"), every)
    grown = mul(tape, inputs, cast(tape, state, "fp32"))
    out, variables = _loop(ctx, sizes, decays, grown, shared[1])
    out = add(tape, out, mul(tape, state, rate[1]))
    del dt, decays, inputs, grown, variables
    return out


def rows_of_tokens(ctx: Context, x: Value) -> Value:
    """[batch, channels, tokens] turned around: of several sequences a linear layer copies it to make rows of tokens."""
    return copy(ctx.tape, x, "reshape") if ctx.batch > 1 else x


def _loop(ctx: Context, sizes: Channels, decays: Value, grown: Value, queries: Value) -> tuple[Value, list[Storage]]:
    """Token by token ``state = decay * state + input``, and the state's product with C; all products are stacked.

    Kept: every state but the last, and a copy of each in the dtype of C, or every state where that is fp32, too. In
    backward each token's gradient is a slice written into zeros of all tokens' size, and added to those of the later
    tokens. The highest point is the third such tensor, when nearly all states are still there. The second result is
    what variables hold: products, last state.
    """
    tape, tokens = ctx.tape, ctx.sequence
    dtype, wide = queries.dtype, decays.dtype
    one, output, every = (ctx.batch, sizes.inner, sizes.state), (ctx.batch, sizes.inner), decays.shape
    most, last = (max(tokens - 2, 0), *one), (min(tokens, 2), *one)
    zeros = tape.new(one, dtype, "state")
    graph = tape.frame is None or tape.frame.recomputed is not None
    saving = tape.grad_enabled and decays.origin is not None and graph
    copied = [dtype] if dtype != wide else []
    saved = [tape.new(last, dtype, "states"), *(tape.new(one, wide, "states") for _ in copied)] if saving else []
    bulk = [tape.new(most, kind, "states") for kind in (wide, *copied)] if saving else []
    products = tape.new((tokens, *output), dtype, "state @ C")
    state = tape.new(one, wide, "state") if copied or not saving else saved[0]
    following = tape.new(one, wide, "decay * state"), tape.new(one, wide, "state")
    del following
    out = tape.value((ctx.tokens, sizes.inner), dtype, "stack")
    shared = queries.shape

    kept = [decays.storage, queries.storage, zeros, *saved, *bulk]

    def run(grad: Storage) -> list[Storage | None]:
        through = [tape.new(shared, dtype, "select backward") for _ in range(2)]
        narrow = tape.new(one, dtype, "state @ C backward")
        arrived = tape.new(one, wide, "to backward") if copied else None
        del narrow
        inputs = tape.new(every, wide, "select backward")
        rates = tape.new(every, wide, "select backward")
        del kept[3 : 3 + len(saved)]
        third = tape.new(every, wide, "select backward")
        del third, arrived
        kept.clear()
        return [rates, inputs, through[0]]

    return tape.record(out, (decays, grown, queries), run, saves=kept), [products, state]


def _outer(tape: Tape, a: Value, b: Value, shape: tuple[int, ...]) -> Value:
    """``a * b``, both broadcast: each factor is kept when the other wants a gradient, and gets a sum over its rest."""
    wide = promote(a.dtype, b.dtype)
    out = tape.value(shape, wide, "mul")
    kept = (a.storage if b.origin is not None else None, b.storage if a.origin is not None else None)
    found = [(v.shape, v.dtype) if v.origin is not None else None for v in (a, b)]

    def run(grad: Storage) -> list[Storage | None]:
        products = [tape.new(shape, wide, "mul backward") if f else None for f in found]
        sums: list[Storage | None] = []
        for i, f in enumerate(found):
            total = tape.new(f[0], wide, "sum") if f else None
            products[i] = None
            sums.append(tape.new(f[0], f[1], "to backward") if f and f[1] != wide else total)
        return sums

    return tape.record(out, (a, b), run, saves=kept)


def _decay(ctx: Context, tensors: dict[str, ParameterTensor], sizes: Channels) -> Value:
    """``exp(A_log.float())``: one decay of each channel and state."""
    tape = ctx.tape
    found = ctx.parameter(tensors["A_log"].name, (sizes.inner, sizes.state))
    return unary(tape, convert_weight(tape, tape.parameter(found), "fp32"), "exp")


def _vector(ctx: Context, tensor: ParameterTensor) -> Value:
    return ctx.tape.parameter(ctx.parameter(tensor.name, (-(-tensor.shape[0] // ctx.tp),)))


def _scan_states(ctx: Context, sizes: Channels) -> tuple[int, ...]:
    return (ctx.batch, sizes.inner, -(-ctx.sequence // SCAN_CHUNK), 2 * sizes.state)


def _sizes(ctx: Context, mixer: Mixer) -> Channels:
    rank = _named(mixer)["dt_proj.weight"].shape[1]
    return Channels(-(-mixer.heads // ctx.tp) * mixer.head_dim, rank, mixer.key_dim)


def _named(mixer: Mixer) -> dict[str, ParameterTensor]:
    return {t.name.partition(".")[2]: t for t in mixer.tensors}


def _project(ctx: Context, tensors: dict[str, ParameterTensor], name: str, x: Value) -> Value:
    tensor = tensors[name + ".weight"]
    return linear(ctx.tape, x, ctx.weights(tensor, name + ".bias" in tensors), tensor.name)
