"""Kimi's delta attention: a delta rule whose decay is of each channel, in PyTorch's own operations or fla's kernels.

Sources: transformers 5.23 models/kimi_linear/modeling_kimi_linear.py (KimiLinearDeltaAttention, KimiLinearForgetGate,
chunk_kimi_delta_attention); flash-linear-attention ops/kda/chunk.py, chunk_fwd.py, chunk_bwd.py (ChunkKDAFunction).
"""

from __future__ import annotations

from memcheck.autograd.attention import batched
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import (
    add,
    add_bias,
    cast,
    cat,
    convert_weight,
    copy,
    mul,
    scale,
    shift,
    subtract,
    unary,
    where,
)
from memcheck.autograd.operator import operator
from memcheck.autograd.pieces import counted_as, in_pieces
from memcheck.autograd.tensor import Storage, Tape, Value, rounded
from memcheck.frameworks.transformers.delta_rule import CHUNK, Cut, project, tensor_of
from memcheck.frameworks.transformers.scan import convolve, gated_norm, pad, select, sum_rows, write
from memcheck.models.mixer_types import BoundedLingDelta, LingDelta
from memcheck.models.types import Mixer

Inputs = tuple[Value, Value, Value, Value, Value]
"""Queries, keys, values, decay of each channel, beta."""


def kimi_delta(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Kimi's delta attention with causal-conv1d and flash-linear-attention."""
    return _attention(ctx, mixer, x, fused=True)


def kimi_delta_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Kimi's delta attention in PyTorch, without those packages."""
    return _attention(ctx, mixer, x, fused=False)


def _attention(ctx: Context, mixer: Mixer, x: Value, *, fused: bool) -> Value:
    """Projections, one convolution over all of them, the rule, a norm with a gate, projection."""
    tape, d = ctx.tape, mixer.head_dim
    heads = -(-mixer.heads // ctx.tp)
    width = heads * d
    parts = tuple(project(ctx, mixer, x, f"self_attn.{name}_proj") for name in "qkv")
    mixed = cat(tape, parts, (ctx.tokens, 3 * width), "cat q, k, v")
    del parts
    mixed = convolve(ctx, tensor_of(mixer, "conv1d"), None, mixed, "silu", fused=fused)
    shape = (ctx.batch, heads, ctx.sequence, d)
    query, key, value = tape.views(mixed, shape, shape, shape)
    decay = _forget(ctx, mixer, x, heads).view(*shape)
    beta = unary(tape, project(ctx, mixer, x, "self_attn.b_proj"), "sigmoid").view(ctx.batch, heads, ctx.sequence, 1)
    inputs = (query, key, value, decay, beta)
    out = _fused(ctx, inputs) if fused else _chunked(ctx, heads, d, inputs)
    if isinstance(mixer, LingDelta):
        gate = project(ctx, mixer, x, "self_attn.g_proj")
    else:
        gate = project(ctx, mixer, project(ctx, mixer, x, "g_a_proj"), "g_b_proj")
    norm, rows = tensor_of(mixer, "o_norm"), (ctx.tokens * heads, d)
    weight = ctx.parameter(norm.name, norm.shape)
    normed = gated_norm(tape, out.view(*rows), gate.view(*rows), weight, act="sigmoid", wide=True)
    result = project(ctx, mixer, normed.view(ctx.tokens, width), mixer.output)
    del mixed, query, key, value, decay, beta, inputs, out, gate, normed
    return result


def _forget(ctx: Context, mixer: Mixer, x: Value, heads: int) -> Value:
    """KimiLinearForgetGate: ``-exp(A_log) * softplus(...)`` in fp32, written as logarithm and ``where``."""
    tape = ctx.tape
    if isinstance(mixer, LingDelta):
        return _forget_whole(ctx, mixer, x, heads)
    rank = tensor_of(mixer, "f_b_proj").shape[1]
    low = project(ctx, mixer, x, "f_a_proj")
    raw = project(ctx, mixer, low.view(ctx.tokens, rank), "f_b_proj")
    step, rate = tensor_of(mixer, "dt_bias"), tensor_of(mixer, "A_log")
    wide_step = convert_weight(tape, tape.parameter(ctx.parameter(step.name, (raw.shape[-1],))), "fp32")
    g = add_bias(tape, cast(tape, raw, "fp32"), wide_step)
    wide_rate = convert_weight(tape, tape.parameter(ctx.parameter(rate.name, (1, 1, heads, 1))), "fp32")
    factor = unary(tape, wide_rate, "exp")
    large = tape.new(g.shape, "bool", "g > 20")
    softened = unary(tape, shift(tape, unary(tape, g, "exp")), "log")
    softplus = where(tape, large, g, softened)
    del softened, large
    result = mul(tape, scale(tape, factor, "neg"), softplus)
    del low, raw, g, softplus
    return result


def _forget_whole(ctx: Context, mixer: Mixer, x: Value, heads: int) -> Value:
    """BailingHybridForgetGate: ``lower_bound * sigmoid(exp(A_log) * ...)``, or a softplus, in fp32 and cast back."""
    tape = ctx.tape
    raw = project(ctx, mixer, x, "f_proj")
    step, rate = tensor_of(mixer, "dt_bias"), tensor_of(mixer, "A_log")
    g = add_bias(tape, cast(tape, raw, "fp32"), tape.parameter(ctx.parameter(step.name, (raw.shape[-1],))))
    factor = unary(tape, tape.parameter(ctx.parameter(rate.name, (heads,))), "exp")
    if isinstance(mixer, BoundedLingDelta):
        result = scale(tape, unary(tape, mul(tape, factor, g), "sigmoid"), "lower bound")
    else:
        result = mul(tape, scale(tape, factor, "neg"), unary(tape, g, "softplus"))
    narrow = cast(tape, result, raw.dtype if tape.autocast is None else x.dtype)
    del raw, g, result
    return narrow


def _chunked(ctx: Context, heads: int, d: int, inputs: Inputs) -> Value:
    """chunk_kimi_delta_attention: every statement's variable lives as it does there."""
    tape, narrow = ctx.tape, inputs[0].dtype
    cut = Cut(batch=ctx.batch, heads=heads, chunks=-(-ctx.sequence // CHUNK), key=d, value=d)
    query, key, value, decay, beta = (cast(tape, copy(tape, t, "contiguous"), "fp32") for t in inputs)
    query, key = _unit(tape, query), _unit(tape, key)
    query = scale(tape, pad(tape, query, cut.rows(d)))
    key, value, decay = (pad(tape, t, cut.rows(d)) for t in (key, value, decay))
    beta = pad(tape, beta, cut.rows(1))
    v_beta, k_beta = mul(tape, value, beta), mul(tape, key, beta)
    total = scale(tape, decay, "cumsum")
    del decay
    cube = (*cut.rows(CHUNK), d)
    pairwise = unary(tape, scale(tape, _difference(tape, total, cube), "masked_fill"), "exp")
    product = mul(tape, _outer(tape, k_beta, key, cube), pairwise)
    system = sum_rows(tape, product, cut.rows(CHUNK))
    del product
    system = scale(tape, scale(tape, system, "neg"), "masked_fill")
    system = shift(tape, _rows(tape, system), "add eye")
    value = batched(tape, system, v_beta, cut.rows(d), "system @ values")
    key_decay = batched(tape, system, mul(tape, k_beta, unary(tape, total, "exp")), cut.rows(d), "system @ keys")
    state = tape.value(cut.one(d, d), "fp32", "recurrent state")
    core = tape.value(cut.rows(d), "fp32", "core attention output")
    piece, square = cut.one(CHUNK, d), cut.one(CHUNK, CHUNK)
    variables: tuple[Value, ...] = ()
    for _, copies in in_pieces(cut.chunks, 1):
        with counted_as(tape, copies):
            q_i, k_i, v_i, g_i = (select(tape, t, piece) for t in (query, key, value, total))
            inter = batched(tape, mul(tape, q_i, unary(tape, g_i, "exp")), state, piece, "query @ state")
            both = mul(tape, _outer(tape, q_i, k_i, (*square, d)), select(tape, pairwise, (*square, d)))
            intra = sum_rows(tape, both, square)
            del both
            intra = scale(tape, intra, "masked_fill")
            v_prime = batched(tape, select(tape, key_decay, piece), state, piece, "k_cumdecay @ state")
            v_new = subtract(tape, v_i, v_prime)
            variables = (q_i, k_i, v_i, g_i, inter, intra, v_prime, v_new)
            core = write(tape, core, add(tape, inter, batched(tape, intra, v_new, piece, "intra @ values")))
            kept = mul(tape, state, unary(tape, select(tape, g_i, cut.one(d, 1)), "exp"))
            last = _broadcast(tape, select(tape, g_i, cut.one(1, d)), g_i)
            grown = batched(tape, mul(tape, k_i, unary(tape, last, "exp")), v_new, cut.one(d, d), "key @ values")
            state = add(tape, kept, grown)
            del kept, grown, last, inter, intra, v_prime, v_new, q_i, k_i, v_i, g_i
    out = select(tape, core, (ctx.batch, ctx.sequence, heads, d))
    out = cast(tape, copy(tape, out, "contiguous"), narrow)
    del variables, state, query, key, value, v_beta, k_beta, beta, total, pairwise, system, key_decay, core
    return out


def _unit(tape: Tape, x: Value) -> Value:
    """``x / sqrt((x * x).sum(-1) + eps)``: the quotient keeps both; its backward makes four tensors of x's size."""
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
    """``x.unsqueeze(-2) - x.unsqueeze(-3)``: the second one's gradient is a negated copy; both are summed."""
    out = tape.value(shape, x.dtype, "pairwise decay")
    negated, second = (shape, x.dtype, "neg"), (x.shape, x.dtype, "sum")
    return operator(tape, out, x, "sum", temporaries=[negated], later=[second])


def _broadcast(tape: Tape, row: Value, x: Value) -> Value:
    """``row - x`` of one row and all."""
    out = tape.value(x.shape, x.dtype, "sub")
    return operator(tape, out, (row, x), [(row.shape, x.dtype, "sum"), "neg"], reverse=True)


def _outer(tape: Tape, a: Value, b: Value, shape: tuple[int, ...]) -> Value:
    """``a.unsqueeze(-2) * b.unsqueeze(-3)``: keeps both; gradients have its size until they are summed."""
    out = tape.value(shape, a.dtype, "outer product")
    small, dtype = a.shape, a.dtype

    def run(grad: Storage) -> list[Storage | None]:
        first, second = (tape.new(shape, dtype, "mul backward") for _ in range(2))
        one = tape.new(small, dtype, "sum")
        del first
        two = tape.new(small, dtype, "sum")
        del second
        return [one, two]

    return tape.record(out, (a, b), run, saves=(a.storage, b.storage))


def _rows(tape: Tape, x: Value) -> Value:
    """The inverse, row by row in place: each of the 63 steps keeps a copy of its row and of the square above it.

    ``attn[..., i, :i] = row + (row.unsqueeze(-1) * sub).sum(-2)``; backward fills zeros of the whole for each slice.
    """
    lead, shape, dtype = x.numel // (CHUNK * CHUNK), x.shape, x.dtype
    sizes = (rounded(4 * lead * n) for i in range(1, CHUNK) for n in (i, i * i))
    copies = tape.new((sum(sizes),), "int8", "rows and squares")
    out, pieces = Value(x.storage, shape, dtype), [(shape, dtype, "CopySlices")] * 3
    return operator(tape, out, x, "CopySlices", saves=(copies,), temporaries=pieces)


def _fused(ctx: Context, inputs: Inputs) -> Value:
    """ChunkKDAFunction: keeps unit queries and keys with their lengths, values, decay and its sums, beta, and the two
    products within chunks; backward makes the states of chunks and what enters them again.
    """
    tape = ctx.tape
    query, _, _, decay, beta = inputs
    shape, narrow = query.shape, query.dtype
    rows = (*shape[:-1], 1)
    kept: list[Storage | None] = [tape.new(shape, narrow, "unit q, k, contiguous v") for _ in range(3)]
    kept += [tape.new(rows, "fp32", "rstd") for _ in range(2)]
    kept += [tape.new(shape, "fp32", "sums of decay"), decay.storage, beta.storage]
    kept += [tape.new((*shape[:-1], CHUNK), narrow, "products within chunks") for _ in range(2)]
    states = (shape[0] * shape[1] * -(-shape[2] // CHUNK), shape[3], shape[3])
    made = [tape.new(shape, narrow, "w, u, kg, v_new") for _ in range(4)]
    made.append(tape.new(states, narrow, "states of chunks"))
    out = tape.value(shape, narrow, "kimi delta rule")
    del made
    label = "kimi delta rule backward"
    again = [(shape, narrow, "recomputed w, u, qg, kg, v_new")] * 5 + [(states, narrow, "states of chunks")] * 2
    wide = [(shape, "fp32", label)] * 3 + [((*shape[:-1], CHUNK), "fp32", label)]
    return operator(tape, out, inputs, label, saves=kept, temporaries=again + wide)
