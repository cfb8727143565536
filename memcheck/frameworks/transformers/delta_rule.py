"""Gated delta nets in PyTorch's own operations: what they run in without flash-linear-attention.

Sources: transformers 5.23 models/qwen3_5/modeling_qwen3_5.py (Qwen3_5GatedDeltaNet, torch_chunk_gated_delta_rule),
models/qwen3_next/modeling_qwen3_next.py, models/olmo_hybrid/modeling_olmo_hybrid.py.
"""

from __future__ import annotations

from memcheck.autograd.attention import batched
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, add_bias, cast, cat, copy, mul, scale, subtract, unary
from memcheck.autograd.indexing import repeat_kv
from memcheck.autograd.matrix import linear
from memcheck.autograd.operator import operator
from memcheck.autograd.pieces import counted_as, in_pieces
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.transformers.scan import contiguous_as, convolve, gated_norm, l2_norm, pad, select, write
from memcheck.models.mixer_types import DoubledBetaMixer
from memcheck.models.types import Mixer, ParameterTensor
from memcheck.record import Record

CHUNK = 64
"""``chunk_size`` of torch_chunk_gated_delta_rule."""


class Cut(Record):
    """Sizes of the chunks: sequences, value heads, chunks, widths of a key and of a value."""

    batch: int
    heads: int
    chunks: int
    key: int
    value: int

    def rows(self, width: int) -> tuple[int, ...]:
        """[batch, heads, chunks, chunk, width]."""
        return (self.batch, self.heads, self.chunks, CHUNK, width)

    def one(self, *sizes: int) -> tuple[int, ...]:
        """A tensor of one chunk."""
        return (self.batch, self.heads, *sizes)


def tensor_of(mixer: Mixer, leaf: str) -> ParameterTensor:
    """The parameter whose path ends so."""
    return next(t for t in mixer.tensors if t.name.removesuffix(".weight").endswith(leaf))


def project(ctx: Context, mixer: Mixer, x: Value, leaf: str) -> Value:
    """One of the mixer's linear layers."""
    tensor = tensor_of(mixer, leaf)
    return linear(ctx.tape, x, ctx.weights(tensor, bias=False), tensor.name)


def delta_net_fallback(ctx: Context, mixer: Mixer, x: Value) -> Value:
    """Projections, convolution, the chunked rule, gated norm, projection. Variables live to the module's end."""
    tape = ctx.tape
    heads, keys = -(-mixer.heads // ctx.tp), -(-mixer.key_heads // ctx.tp)
    shapes = (ctx.batch, keys, ctx.sequence, mixer.key_dim), (ctx.batch, heads, ctx.sequence, mixer.head_dim)
    mixed, gate, beta, decay = delta_inputs(ctx, mixer, x)
    del x
    mixed = convolve(ctx, tensor_of(mixer, "conv1d"), None, mixed, "silu")
    query, key, value = tape.views(mixed, shapes[0], shapes[0], shapes[1])
    beta = unary(tape, beta, "sigmoid")
    if isinstance(mixer, DoubledBetaMixer):
        beta = scale(tape, beta)
    rate = tape.parameter(ctx.parameter("A_log", (heads,)))
    shift = tape.parameter(ctx.parameter("dt_bias", (heads,)))
    softened = unary(tape, add_bias(tape, cast(tape, decay, "fp32"), shift), "softplus")
    decay_rate = mul(tape, softened, rate)
    del softened
    chunks = -(-ctx.sequence // CHUNK)
    cut = Cut(batch=ctx.batch, heads=heads, chunks=chunks, key=mixer.key_dim, value=mixer.head_dim)
    out = chunked_rule(ctx, cut, query, key, value, decay_rate, beta)
    norm = tensor_of(mixer, "norm")
    rows = (ctx.tokens * heads, mixer.head_dim)
    out = gated_norm(tape, out.view(*rows), gate.view(*rows), ctx.parameter(norm.name, norm.shape))
    result = project(ctx, mixer, out.view(ctx.tokens, heads * mixer.head_dim), mixer.output)
    del mixed, gate, beta, decay, query, key, value, decay_rate
    return result


def delta_inputs(ctx: Context, mixer: Mixer, x: Value) -> tuple[Value, Value, Value, Value]:
    """What the convolution reads, the output's gate, beta and the decay, before their activations."""
    tape = ctx.tape
    names = {t.name.removesuffix(".weight").rpartition(".")[2] for t in mixer.tensors}
    if "in_proj_qkv" in names:
        parts = [project(ctx, mixer, x, f"in_proj_{name}") for name in ("qkv", "z", "b", "a")]
        return parts[0], parts[1], parts[2], parts[3]
    heads = -(-mixer.heads // ctx.tp)
    values, keys = heads * mixer.head_dim, -(-mixer.key_heads // ctx.tp) * mixer.key_dim
    widths = (keys, keys, values)
    if "in_proj_qkvz" in names:
        joint, small = project(ctx, mixer, x, "in_proj_qkvz"), project(ctx, mixer, x, "in_proj_ba")
        *qkv, gate = tape.views(joint, *((ctx.tokens, w) for w in (*widths, values)))
        gate, qkv = copy(tape, gate, "reshape"), [copy(tape, part, "reshape") for part in qkv]
        beta, decay = (copy(tape, v, "reshape") for v in tape.views(small, *(((ctx.tokens, heads),) * 2)))
        return cat(tape, tuple(qkv), (ctx.tokens, sum(widths)), "cat q, k, v"), gate, beta, decay
    qkv = [project(ctx, mixer, x, f"linear_attn.{name}_proj") for name in "qkv"]
    mixed = cat(tape, tuple(qkv), (ctx.tokens, sum(widths)), "cat q, k, v")
    del qkv
    beta, decay = project(ctx, mixer, x, "b_proj"), project(ctx, mixer, x, "a_proj")
    return mixed, project(ctx, mixer, x, "g_proj"), beta, decay


def chunked_rule(ctx: Context, cut: Cut, query: Value, key: Value, value: Value, decay: Value, beta: Value) -> Value:
    """torch_chunk_gated_delta_rule, normalising queries and keys; every statement's variable lives as it does there."""
    tape = ctx.tape
    narrow = value.dtype
    if query.shape[1] != cut.heads:
        query, key = (repeat_kv(tape, t, cut.heads, copies=True) for t in (query, key))
    # of fp32 `to(..., memory_format)` is no copy, and padding by nothing a clone: heads stay between tokens, so that
    # products over chunks copy both sides
    turned = (narrow == "fp32" and not ctx.sequence % CHUNK,) * 2
    query, key, value, beta, decay = (cast(tape, t, "fp32") for t in (query, key, value, beta, decay))
    norm_rows = (*query.shape[:-1], 1)
    query, key = l2_norm(tape, query, norm_rows), l2_norm(tape, key, norm_rows)
    query = scale(tape, query)
    query, key, value = (pad(tape, t, cut.rows(w)) for t, w in ((query, cut.key), (key, cut.key), (value, cut.value)))
    beta, decay = (pad(tape, t, cut.rows(1)) for t in (beta, decay))
    v_beta, k_beta = mul(tape, value, beta), mul(tape, key, beta)
    total = scale(tape, decay, "cumsum")
    pairwise = _pairwise(tape, total, cut.rows(CHUNK))
    system = mul(tape, batched(tape, k_beta, key, cut.rows(CHUNK), "k_beta @ key", turned), pairwise)
    intra = mul(tape, batched(tape, query, key, cut.rows(CHUNK), "query @ key", turned), pairwise)
    decayed = mul(tape, k_beta, unary(tape, total, "exp"))
    new_values, key_decay = solve(tape, system, v_beta), solve(tape, system, decayed)
    state = tape.value(cut.one(cut.key, cut.value), "fp32", "recurrent state")
    core = tape.value(cut.rows(cut.value), "fp32", "core attention output")
    query = mul(tape, query, unary(tape, total, "exp"))
    key = mul(tape, key, unary(tape, scale(tape, total), "exp"))
    ends = unary(tape, select(tape, total, cut.one(cut.chunks, 1)), "exp")
    for _, copies in in_pieces(cut.chunks, 1):
        with counted_as(tape, copies):
            fresh = select(tape, new_values, cut.one(CHUNK, cut.value))
            before = select(tape, key_decay, cut.one(CHUNK, cut.key))
            old = batched(tape, before, state, fresh.shape, "k_cumdecay @ state")
            fresh = subtract(tape, fresh, old)
            del old, before
            inter = batched(tape, select(tape, query, cut.one(CHUNK, cut.key)), state, fresh.shape, "query @ state")
            within = batched(tape, select(tape, intra, cut.one(CHUNK, CHUNK)), fresh, fresh.shape, "intra @ values")
            part = add(tape, inter, within)
            del within
            core = write(tape, core, part)
            del part
            kept = mul(tape, state, select(tape, ends, cut.one(1, 1)))
            grown = batched(
                tape, select(tape, key, cut.one(CHUNK, cut.key)), fresh, cut.one(cut.key, cut.value), "key @ values"
            )
            state = add(tape, kept, grown)
            del kept, grown, inter, fresh
    out = contiguous_as(tape, select(tape, core, (ctx.batch, ctx.sequence, cut.heads, cut.value)), narrow)
    del state, query, key, value, v_beta, k_beta, system, intra, pairwise, decayed, new_values, key_decay
    return out


def _pairwise(tape: Tape, total: Value, shape: tuple[int, ...]) -> Value:
    """``exp`` of all differences within a chunk, of which those above the diagonal are masked away."""
    difference = tape.value(shape, total.dtype, "pairwise decay")
    later = [(shape, total.dtype, "neg"), (total.shape, total.dtype, "sum")]
    difference = operator(tape, difference, total, "sum", later=later)
    return unary(tape, scale(tape, difference, "masked_fill"), "exp")


def solve(tape: Tape, system: Value, right: Value) -> Value:
    """``torch.linalg.solve_triangular``: keeps the matrix and its result.

    FunctionsManual.cpp, linalg_solve_triangular_backward: the gradient of the right side, times the result, cut to the
    triangle.
    """
    out = tape.value(right.shape, right.dtype, "solve_triangular")
    matrix, shape, dtype = system.shape, right.shape, right.dtype

    def run(grad: Storage) -> list[Storage | None]:
        side = tape.new(shape, dtype, "solve_triangular backward")
        product = tape.new(matrix, dtype, "solve_triangular backward")
        negated = tape.new(matrix, dtype, "solve_triangular backward")
        del product
        lower = tape.new(matrix, dtype, "tril")
        del negated
        return [lower, side]

    return tape.record(out, (system, right), run, saves=(system.storage, out.storage))
