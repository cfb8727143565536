"""DeepSeek V4's attention: eager, over a window and over keys that each stand for several tokens.

Source: transformers 5.23 models/deepseek_v4/modeling_deepseek_v4.py (DeepseekV4Attention, DeepseekV4HCACompressor,
DeepseekV4CSACompressor, DeepseekV4Indexer, DeepseekV4IndexerScorer, apply_rotary_pos_emb).
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.eager import eager_with_sinks
from memcheck.autograd.elementwise import cast, cat, copy, mean_rows, mul, power, scale, unary
from memcheck.autograd.indexing import head_view, repeat_kv, slices
from memcheck.autograd.matrix import Weights, linear
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import PASSED, factors, operator
from memcheck.autograd.rotary import rotate_half
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.errors import UnsupportedError
from memcheck.models.attention_types import Compressed
from memcheck.models.types import Attention, Norm, ParameterTensor

Tensors = dict[str, ParameterTensor]
TOPK = 512
"""Keys that released models choose for each token."""


def compressed_attention(ctx: Context, a: Attention, c: Compressed, x: Value) -> Value:
    """One attention module. Whatever has a name in its forward lives until it returns."""
    if ctx.tp > 1 or ctx.setting.context > 1:
        raise UnsupportedError(
            "memcheck has no model of DeepSeek V4's attention on several ranks",
            "leave tensor and context at 1: transformers cuts its experts alone",
            "/parallelism",
        )
    tape, b, s, d = ctx.tape, ctx.batch, ctx.sequence, a.head_dim
    tensors = {t.name.removeprefix("self_attn.").removesuffix(".weight"): t for t in a.tensors}
    low = _norm(ctx, "q_a_norm", _project(ctx, tensors, "q_a_proj", x))
    q = head_view(tape, _project(ctx, tensors, "q_b_proj", low), (b, a.heads, s, d))
    q = _weightless(tape, q)
    q = _turned(ctx, a, q)
    kv = _norm(ctx, "kv_norm", _project(ctx, tensors, "kv_proj", x)).view(b, 1, s, d)
    kv = _turned(ctx, a, kv)
    bias = mask = keys = None
    if c.rate:
        keys, bias = _compressed_keys(ctx, a, c, tensors, x, low)
        windows = keys.shape[2]
        kv = cat(tape, (kv, keys), (b, 1, s + windows, d), "cat compressed keys")
        if windows:
            mask = tape.new((b, 1, s, s + windows), ctx.setting.params, "cat masks")
    out = _attend(ctx, a, q, kv)
    out = _turned(ctx, a, out)
    grouped = _by_groups(ctx, c, tensors["o_a_proj"], copy(tape, out, "reshape"))
    result = _project(ctx, tensors, "o_b_proj", grouped)
    del low, q, kv, bias, mask, keys, out, grouped
    return result


def _project(ctx: Context, tensors: Tensors, name: str, x: Value) -> Value:
    return linear(ctx.tape, x, ctx.replicated(tensors[name]), tensors[name].name)


def _norm(ctx: Context, name: str, x: Value) -> Value:
    weight, _ = ctx.norm_weight(Norm("rmsnorm", x.shape[-1]), name)
    return rms_norm_pieces(ctx.tape, x, weight, weight_in_fp32=True)


def _weightless(tape: Tape, x: Value) -> Value:
    """DeepseekV4UnweightedRMSNorm: an fp32 copy is squared, x is multiplied as it came."""
    inverse = unary(tape, mean_rows(tape, power(tape, cast(tape, x, "fp32"))), "rsqrt")
    return mul(tape, x, cast(tape, inverse, x.dtype))


def _turned(ctx: Context, a: Attention, x: Value) -> Value:
    """The last elements of each head, in fp32 by repeated tables of the stream's dtype, cast back and joined."""
    tape, shape, turned = ctx.tape, x.shape, a.rotary_dim
    dtype = ctx.setting.params
    tables = tuple(tape.new((shape[2], turned), dtype, "repeated rotary table") for _ in range(2))
    first, last = slices(tape, x, (*shape[:-1], shape[-1] - turned), (*shape[:-1], turned))
    rotated = cast(tape, rotate_half(tape, last, "fp32", tables), x.dtype)
    return cat(tape, (first, rotated), shape, "cat rotary")


def _attend(ctx: Context, a: Attention, q: Value, kv: Value) -> Value:
    """eager_attention_forward: sinks are fp32 whatever the weights are, and so are logits and probabilities."""
    tape = ctx.tape
    # repeated keys are a view with stride 0, which a batched product of several sequences copies
    several = ctx.setting.batch > 1
    k, v = (repeat_kv(tape, kv, a.heads) for _ in range(2))
    sinks = tape.parameter(ctx.parameter("self_attn.sinks", (a.heads,))) if a.sinks else None
    out = eager_with_sinks(
        tape, q, k, v, sinks, ctx.unused, mask_dtype=ctx.setting.params if tape.autocast else None,
        p_dropout=a.dropout, copied=(False, several, several),
    )  # fmt: skip
    return copy(tape, out, "contiguous")


def _compressed_keys(
    ctx: Context, a: Attention, c: Compressed, tensors: Tensors, x: Value, low: Value
) -> tuple[Value, Storage | None]:
    """Keys of whole windows, and the bias that says which of them a token may see."""
    tape, b, s = ctx.tape, ctx.batch, ctx.sequence
    windows = ctx.setting.sequence // c.rate
    keys, named = _pooled(ctx, a, c, tensors, "compressor", x)
    if not windows:
        for tensor in (t for t in a.tensors if t.fixed and ctx.setting.sequence < c.rate):
            ctx.constant(tensor)
        return keys, None
    chosen = _choose(ctx, a, c, tensors, x, low) if c.index_heads else None
    if chosen is None:
        zeros = tape.new((b, 1, s, windows), keys.dtype, "zeros")
        bias = tape.new((b, 1, s, windows), keys.dtype, "masked_fill")
        del zeros, named
        return keys, bias
    safe = tape.new(chosen.shape, "int64", "safe indices")
    bias = tape.new((b, 1, s, windows + 1), keys.dtype, "block bias")
    del safe, chosen, named
    return keys, bias


def _pooled(
    ctx: Context, a: Attention, c: Compressed, tensors: Tensors, module: str, x: Value
) -> tuple[Value, list[Value]]:
    """Windows of keys, weighted by an fp32 softmax of gates; with overlap each reads the window before it, too. Then
    what else the forward that makes them has names for until it returns.
    """
    tape, b = ctx.tape, ctx.setting.batch
    windows = ctx.setting.sequence // c.rate
    width = tensors[module + ".kv_norm"].shape[0]
    made = _project(ctx, tensors, module + ".kv_proj", x)
    gate = _project(ctx, tensors, module + ".gate_proj", x)
    bias = ctx.parameter(tensors[module + ".position_bias"].name, tensors[module + ".position_bias"].shape)
    if not windows:
        ctx.norm_weight(Norm("rmsnorm", width), module + ".kv_norm")
        return tape.value((b, 1, 0, width), made.dtype, "new_zeros"), [made, gate]
    whole = (b * windows * c.rate, made.shape[-1])
    part, gates = (slices(tape, v, whole)[0] if whole[0] != v.shape[0] else v for v in (made, gate))
    gates = _biased(tape, gates, tape.parameter(bias))
    named = [made, gate, gates]
    if c.index_heads:
        shape = (b * windows, 2 * c.rate, width)
        part, gates = (_overlapped(tape, v, shape) for v in (part, gates))
    else:
        shape = (b * windows, c.rate, width)
        part, gates = part.view(*shape), gates.view(*shape)
    weights = cast(tape, kernels.softmax(tape, gates, "fp32"), part.dtype)
    weighted = mul(tape, part, weights)
    del weights
    pooled = _summed(tape, weighted, (b * windows, width))
    del weighted
    pooled = _norm(ctx, module + ".kv_norm", pooled)
    return _turned(ctx, a, pooled.view(b, 1, windows, width)), [*named, part, gates]


def _summed(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``x.sum(dim=2)``, for which autocast asks in fp32: keys that are joined to narrower ones widen all of them."""
    narrow = x.dtype
    out = tape.value(shape, "fp32" if tape.autocast else narrow, "sum of windows")
    return operator(tape, out, x, PASSED if out.dtype == narrow else "to backward")


def _biased(tape: Tape, x: Value, bias: Value) -> Value:
    """``x + position_bias``, which is fp32 in a model that was loaded, unless FSDP casts it: so is the sum."""
    out = tape.value(x.shape, promote(x.dtype, bias.dtype), "add")
    shape, dtype, small, narrow = x.shape, x.dtype, bias.shape, bias.dtype
    nb = bias.origin is not None

    def run(grad: Storage) -> list[Storage | None]:
        own = grad if dtype == grad.dtype else tape.new(shape, dtype, "to backward")
        return [own, tape.new(small, narrow, "sum") if nb else None]

    return tape.record(out, (x, bias), run)


def _overlapped(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """A tensor of zeros (or of -inf) into whose halves slices are copied: two CopySlices nodes."""
    out = tape.value(shape, x.dtype, "overlapping windows")
    source, dtype = x.shape, x.dtype
    half = (shape[0], shape[1] // 2, shape[2])
    first = operator(
        tape,
        Value(out.storage, shape, dtype),
        x,
        "slice backward",
        temporaries=[(shape, dtype, "CopySlices"), (half, dtype, "CopySlices")],
    )
    again = Value(out.storage, shape, dtype)

    def second(grad: Storage) -> list[Storage | None]:
        whole = tape.new(shape, dtype, "CopySlices")
        part = tape.new(half, dtype, "CopySlices")
        padded = tape.new(source, dtype, "slice backward")
        del part
        return [whole, padded]

    return tape.record(again, (first, x), second)


def _choose(ctx: Context, a: Attention, c: Compressed, tensors: Tensors, x: Value, low: Value) -> Storage:
    """DeepseekV4Indexer: fp32 scores of every head, token and compressed key, summed over heads; indices leave it.

    Its graph dies when it returns.
    """
    tape, b, s = ctx.tape, ctx.batch, ctx.sequence
    heads, width, i = c.index_heads, c.index_dim, "compressor.indexer"
    windows = ctx.setting.sequence // c.rate
    keys, named = _pooled(ctx, a, c, tensors, i, x)
    q = _project(ctx, tensors, i + ".q_b_proj", low).view(b, heads, s, width)
    q = _turned(ctx, a, q)
    wide = cast(tape, q, "fp32")
    # matmul repeats the keys for every query, which of several sequences is a copy (LinearAlgebra.cpp, _matmul_impl)
    narrow = cast(tape, keys, "fp32")
    each, copied = (b, s, width, windows), (ctx.setting.batch > 1,) * 2
    scores = kernels.batched(tape, wide, narrow.view(*each), (b, s, heads, windows), "index scores", copied)
    del wide, narrow
    scores = scale(tape, unary(tape, scores, "relu"), "softmax scale")
    weights = scale(tape, cast(tape, _project(ctx, tensors, i + ".scorer.weights_proj", x), "fp32"), "weights scaling")
    weighted = mul(tape, scores, weights.view(b, s, heads, 1))
    total = tape.value((b, s, windows), "fp32", "index scores of keys")
    total = operator(tape, total, weighted, PASSED)
    del weighted, scores, weights
    future = tape.new((b, s, windows), "bool", "future mask")
    masked = tape.new((b, s, windows), "fp32", "masked index scores")
    chosen = (b, s, min(windows, TOPK))
    values = tape.new(chosen, "fp32", "topk values")
    indices = tape.new(chosen, "int64", "topk indices")
    del values
    invalid = tape.new(chosen, "bool", "invalid")
    none = tape.new(chosen, "int64", "full_like")
    found = tape.new(chosen, "int64", "chosen keys")
    del future, masked, indices, invalid, none, total, keys, named, q
    return found


def _by_groups(ctx: Context, c: Compressed, tensor: ParameterTensor, x: Value) -> Value:
    """DeepseekV4GroupedLinear: a batched product of the groups' rows with parts of one matrix."""
    tape, rows = ctx.tape, ctx.tokens
    out, inner = tensor.shape
    weights: Weights = ctx.weights(tensor._replace(shard="none"), False)
    if weights.lora_a is not None:
        raise UnsupportedError(
            "peft's adapter of o_a_proj, a product of each group of heads, has another shape than its output: "
            "the forward of DeepSeek V4 ends in an error",
            "name target_modules without o_a_proj: all-linear has it",
            "/training/lora/target_modules",
        )
    matrix, size = tape.parameter(weights.weight), (out, inner)
    if tape.autocast:
        from memcheck.autograd.elementwise import cast_weight

        matrix = cast_weight(tape, matrix, tape.autocast)
        x = cast(tape, x, tape.autocast)
    kind = matrix.dtype
    # the product's gradient is transposed, and copied for the view of the weight
    matrix = operator(tape, Value(matrix.storage, size, kind), matrix, (size, kind, "contiguous gradient"))
    shape = (c.groups, rows, out // c.groups)
    made = tape.value(shape, x.dtype, tensor.name)
    dtype = x.dtype
    made = operator(tape, made, (x, matrix), ["o_a_proj dX", (size, dtype, "o_a_proj dW")], saves=factors(x, matrix))
    return copy(tape, made, "reshape").view(rows, out)
