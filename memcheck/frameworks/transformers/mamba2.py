"""Mamba-2 in PyTorch's own operations: what it runs in without mamba-ssm and causal-conv1d.

Sources: transformers 5.23 models/mamba2/modeling_mamba2.py (Mamba2Mixer, mamba2_chunk_scan, segment_sum), which
Nemotron-H, Bamba, Falcon-H1, Granite's hybrids and Zamba 2 repeat; aten/src/ATen/native/Linear.cpp (sumproduct_pair: an
einsum permutes its operands for one batched product, and copies those whose dimensions no longer merge; the copies are
variables until the product is there, whatever autocast casts of them).
"""

from __future__ import annotations

from memcheck.autograd.attention import batched
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import (
    add,
    add_bias,
    cast,
    cat,
    clamp,
    convert_weight,
    copy,
    mean_rows,
    mul,
    power,
    scale,
    shift,
    unary,
)
from memcheck.autograd.indexing import repeat_kv
from memcheck.autograd.matrix import linear
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.frameworks.transformers.scan import convolve, pad, select
from memcheck.models.mixer_types import FalconH1Mixer, NormFirstMixer
from memcheck.models.types import Mixer, ParameterTensor
from memcheck.record import Record


class Scan(Record):
    """Sizes of a scan: sequences, heads, chunks, their tokens, width of a head, of its state."""

    batch: int
    heads: int
    chunks: int
    chunk: int
    width: int
    state: int

    def wide(self, size: int) -> tuple[int, ...]:
        """[batch x chunks x heads, chunk, size]."""
        return (self.batch, self.chunks * self.heads, self.chunk, size)


def mamba2_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """in_proj, convolution, chunked scan, gated norm, out_proj; variables live to the module's end."""
    tape = ctx.tape
    heads, groups = -(-mixer.heads // ctx.tp), -(-mixer.groups // ctx.tp)
    inner, shared = heads * mixer.head_dim, groups * mixer.key_dim
    tensors = {t.name.rpartition("mixer.")[2].rpartition("mamba.")[2]: t for t in mixer.tensors}
    projected, source = _project(ctx, tensors, "in_proj", x), x.dtype
    del x
    if isinstance(mixer, FalconH1Mixer):
        projected = multiplied(ctx, projected)
    rows = ctx.tokens
    gate, mixed, step = tape.views(projected, (rows, inner), (rows, inner + 2 * shared), (rows, heads))
    mixed = convolve(ctx, tensors["conv1d.weight"], tensors.get("conv1d.bias"), mixed, "silu")
    state, keys, queries = tape.views(mixed, (rows, inner), (rows, shared), (rows, shared))
    rate = unary(tape, convert_weight(tape, tape.parameter(ctx.parameter("A_log", (heads,))), "fp32"), "exp")
    chunk = mixer.chunk
    chunks = -(-ctx.sequence // chunk)
    cut = Scan(batch=ctx.batch, heads=heads, chunks=chunks, chunk=chunk, width=mixer.head_dim, state=mixer.key_dim)
    skip = tape.parameter(ctx.parameter("D", (heads,)))
    shifted = tape.parameter(ctx.parameter("dt_bias", (heads,)))
    grouped = (ctx.batch, groups, ctx.sequence, mixer.key_dim)
    shared_by = keys.view(*grouped), queries.view(*grouped)
    out = _chunk_scan(tape, cut, ctx.tokens, state, (step, shifted), (rate, skip), shared_by)
    out = _gated(ctx, mixer, tensors, out, gate)
    out = cast(tape, out, source)
    result = _project(ctx, tensors, "out_proj", out)
    del projected, gate, mixed, step, state, keys, queries, out
    return result


def multiplied(ctx: Context, x: Value) -> Value:
    """Falcon-H1's ``x * mup_vector``: a buffer in the dtype in which the model is made, to which x is promoted."""
    tape, wide = ctx.tape, promote(x.dtype, ctx.setting.buffers)
    out = tape.value(x.shape, wide, "in_proj * multipliers")
    if wide == x.dtype:
        return operator(tape, out, x, "multipliers backward")
    return operator(tape, out, x, "to backward", temporaries=[(x.shape, wide, "multipliers backward")])


def _project(ctx: Context, tensors: dict[str, ParameterTensor], name: str, x: Value) -> Value:
    tensor = tensors[name + ".weight"]
    return linear(ctx.tape, x, ctx.weights(tensor, name + ".bias" in tensors), tensor.name)


def _gated(ctx: Context, mixer: Mixer, tensors: dict[str, ParameterTensor], x: Value, gate: Value) -> Value:
    """MambaRMSNormGated: the gate first, then an RMSNorm over each group; its weight multiplies what it is given.

    Without a norm (Falcon-H1 unless asked) the gate alone.
    """
    tape = ctx.tape
    source = x.dtype
    if "norm.weight" not in tensors:
        return mul(tape, x, unary(tape, gate, "silu"))
    x = cast(tape, x, "fp32")
    if not isinstance(mixer, NormFirstMixer):
        x = mul(tape, x, unary(tape, cast(tape, gate, "fp32"), "silu"))
    inverse = unary(tape, shift(tape, mean_rows(tape, power(tape, x))), "rsqrt")
    x = mul(tape, x, inverse)
    weight = tape.parameter(ctx.parameter(tensors["norm.weight"].name, (x.shape[-1],)))
    x = mul(tape, weight, x if isinstance(mixer, FalconH1Mixer) else cast(tape, x, source))
    if isinstance(mixer, NormFirstMixer):
        x = mul(tape, x, unary(tape, cast(tape, gate, "fp32"), "silu"))
    return x


def _chunk_scan(
    tape: Tape,
    cut: Scan,
    tokens: int,
    state: Value,
    step: tuple[Value, Value],
    rate: tuple[Value, Value],
    groups: tuple[Value, Value],
) -> Value:
    """mamba2_chunk_scan, einsum by einsum.

    ``step``: the time steps and their bias; ``rate``: decay and skip factor of each head; ``groups``: B and C.
    """
    (rate_a, skip), (keys, queries) = rate, groups
    padded = cut.batch * cut.chunks * cut.chunk
    h, p, n = cut.heads, cut.width, cut.state
    dt = add_bias(tape, *step)
    dt = clamp(tape, unary(tape, cast(tape, dt, "fp32") if tape.autocast else dt, "softplus"), 2)
    state = cast(tape, state, "fp32")
    keys, queries = (repeat_kv(tape, cast(tape, t, "fp32"), h, copies=True) for t in (keys, queries))
    residual = mul(tape, pad(tape, state, (padded, h * p)), skip)
    state = mul(tape, state, cast(tape, dt, "fp32"))
    decay = mul(tape, cast(tape, dt, "fp32"), rate_a)
    sizes = (h * p, h, h * n, h * n)
    state, decay, keys, queries = (
        pad(tape, t, (padded, size)) for t, size in zip((state, decay, keys, queries), sizes, strict=True)
    )
    total = scale(tape, decay, "cumsum")
    lower = unary(tape, _segment_sum(tape, decay, (cut.batch, h * cut.chunks, cut.chunk, cut.chunk)), "exp")
    scores = _einsum(tape, cut, queries, keys, (n, n, cut.chunk), "queries @ keys")
    weights = mul(tape, scores, lower)
    diagonal = _einsum(tape, cut, weights, state, (cut.chunk, p, p), "weights @ state", copied=(False, True))
    ends = unary(tape, scale(tape, total), "exp")
    decayed = mul(tape, keys, ends)
    left, right = copy(tape, decayed, "einsum reshape"), copy(tape, state, "einsum reshape")
    made = batched(tape, left, right, (cut.batch, cut.chunks * h, p, n), "states of chunks")
    del left, right
    before = (cut.batch, cut.chunks + 1, h, p, n)
    zeros = tape.value((cut.batch, h, p, n), "fp32", "zeros_like")
    joined = cat(tape, (made, zeros), before, "cat states")
    joined.dtype = made.dtype
    del made  # `previous_states`, the zeros, is a variable to the end
    between = tape.value((cut.batch, h, cut.chunks + 1, cut.chunks + 1), "fp32", "decay of chunks")
    right = copy(tape, joined, "einsum reshape")
    passed = _pass_on(tape, between, right, before)
    del joined, right
    earlier = select(tape, passed, (cut.batch, cut.chunks * h, p, n))
    out_decay = unary(tape, total, "exp")
    left = copy(tape, queries, "einsum reshape")
    right = copy(tape, earlier, "einsum reshape") if cut.chunks > 1 else earlier
    carried = batched(tape, left, right, cut.wide(p), "queries @ states")
    del left, right
    off = mul(tape, carried.view(padded, h * p), out_decay.view(padded, h))
    out = add(tape, diagonal.view(padded, h * p), off)
    out = copy(tape, out, "contiguous")
    out = add(tape, out, residual)
    if padded != tokens:
        out = select(tape, out, (tokens, h * p))
    del scores, carried, diagonal, off, residual, dt, lower, weights, decayed, passed, earlier, between, zeros
    return out


def _einsum(
    tape: Tape,
    cut: Scan,
    a: Value,
    b: Value,
    sizes: tuple[int, int, int],
    label: str,
    copied: tuple[bool, bool] = (True, True),
) -> Value:
    """One product per chunk and head of [chunk, sizes[0]] and [sizes[1], ...] to [chunk, sizes[2]]."""
    left = copy(tape, a, "einsum reshape") if copied[0] else a
    right = copy(tape, b, "einsum reshape") if copied[1] else b
    return batched(tape, left, right, cut.wide(sizes[2]), label)


def _pass_on(tape: Tape, between: Value, states: Value, shape: tuple[int, ...]) -> Value:
    """The states that each chunk starts from: a small matrix of decays times all states, both kept."""
    if tape.autocast:
        states = cast(tape, states, tape.autocast)
    out = tape.value(shape, states.dtype, "states before chunks")
    dtype = states.dtype
    return operator(tape, out, states, (shape, dtype, "states backward"), saves=(between, states))


def _segment_sum(tape: Tape, decay: Value, shape: tuple[int, ...]) -> Value:
    """Sums of decays between all tokens of a chunk: masked, summed up, masked again."""
    masked = tape.value(shape, decay.dtype, "masked_fill")
    dtype = decay.dtype
    masked = operator(tape, masked, decay, "sum", temporaries=[(shape, dtype, "masked_fill backward")])
    summed = tape.value(shape, dtype, "cumsum")

    def turn(grad: Storage) -> list[Storage | None]:
        flipped, added = tape.new(shape, dtype, "flip"), tape.new(shape, dtype, "cumsum")
        back = tape.new(shape, dtype, "flip")
        del flipped, added
        return [back]

    summed = tape.record(summed, (masked,), turn)
    out = scale(tape, summed, "masked_fill")
    del masked, summed
    return out
