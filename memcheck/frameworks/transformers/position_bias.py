"""Attention whose scores have relative position biases: T5's and MPNet's.

transformers 5.23 modeling_t5.py (T5Attention) and integrations/sdpa_attention.py (create_position_bias_mask): they are
the mask of the memory-efficient kernel, contiguous, and get a gradient of every head.
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, copy, dropout, scale, shift
from memcheck.autograd.matrix import embedding
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.shared import Gathered, shared
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value, promote
from memcheck.frameworks.transformers.eager import returns
from memcheck.frameworks.transformers.kernel_choice import copied_operands, kernel_of
from memcheck.models.types import Attention

GRADIENT_ALIGNMENT = 16
"""Elements to a multiple of which the kernel pads the rows of a mask's gradient (aten/src/ATen/native/transformers/
cuda/attention_backward.cu, ``lastDimAligned``)."""


def attend_with_biases(ctx: Context, a: Attention, q: Value, k: Value, v: Value) -> Value:
    """Scores, biases, softmax and product; the output is what the projection reads."""
    if a.bias == "given":
        return _onto_given(ctx, a, (q, k, v))
    shape = (1, a.heads, q.shape[2], k.shape[2])
    biases = _biases(ctx, a, shape, q.dtype)
    (ctx.named if a.bias.startswith("own") else ctx.biases).append(biases)
    if kernel_of(ctx, a) == "eager":
        return _eager(ctx, a, (q, k, v), biases)
    tape = ctx.tape
    mask = None
    if not a.bidirectional:
        biases, mask = _causal(tape, biases)
    elif a.padded:
        biases = _unpadded(ctx, biases)
    if not a.bias.endswith("zeros"):
        biases = copy(tape, biases, "contiguous biases")
    del mask
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
        biases = cast(tape, biases, tape.autocast)
    if shape[3] % MASK_ALIGNMENT:
        wide = -(-shape[3] // MASK_ALIGNMENT) * MASK_ALIGNMENT
        biases = padded(tape, biases, (*biases.shape[:3], wide))
    return kernel_with_biases(tape, q, k, v, biases)


def _biases(ctx: Context, a: Attention, shape: tuple[int, ...], dtype: str) -> Value:
    """What is added to the scores: [1, heads, queries, keys]. What later layers read, too, this one returns."""
    tape, s = ctx.tape, ctx.setting
    if a.bias == "own":
        return _own(ctx, a, shape)
    if a.bias == "own-zeros":
        return tape.value(shape, dtype, "zero biases")
    if a.bias == "table":
        found = _looked_up(ctx, a, shape)
        returns(ctx, [found])
        return found
    if a.bias == "shared":
        return shared(tape, shape, s.params, wants=s.trained, starts=s.gathers)
    # `position_bias.requires_grad = True` where layers are checkpointed
    wants = tape.frame is not None and tape.grad_enabled
    if a.bias == "shared-zeros":
        return shared(tape, shape, dtype, wants=wants, starts=s.gathers)
    zeros = tape.leaf(shape, dtype, "zero biases") if wants else tape.value(shape, dtype, "zero biases")
    returns(ctx, [zeros])
    return zeros


def _looked_up(ctx: Context, a: Attention, shape: tuple[int, ...]) -> Value:
    """``compute_bias``: a bucket of the table for each pair of positions; the graph keeps their numbers.

    Where other layers have left a gradient of these biases, this one's is added to it, and the table's is counted with
    the unit.
    """
    tape, pairs = ctx.tape, shape[2:]
    buckets = _buckets(tape, pairs, bidirectional=a.bidirectional)
    tensor = next(t for t in a.tensors if t.name.endswith("relative_attention_bias.weight"))
    table = ctx.parameter(tensor.name, tensor.shape)
    found = embedding(tape, table, pairs, ctx.setting.params, "position biases")
    if not ctx.setting.gathers and found.origin is not None:
        thrown_away = tape.frame is not None and tape.frame.recomputed is None  # a checkpointed forward saves nothing
        return Value(found.storage, shape, found.dtype, Gathered() if thrown_away else Kept(buckets))
    found = Value(found.storage, shape, found.dtype, found.origin)
    return operator(tape, Value(found.storage, shape, found.dtype), found, PASSED, saves=(buckets,))


def _own(ctx: Context, a: Attention, shape: tuple[int, ...]) -> Value:
    """``compute_bias`` of a layer's own table: the look-up keeps the buckets."""
    tape = ctx.tape
    buckets = _buckets(tape, shape[2:], bidirectional=a.bidirectional, named=True)
    tensor = next(t for t in a.tensors if t.name.endswith("relative_attention_bias.weight"))
    table = ctx.parameter(tensor.name, tensor.shape)
    found = embedding(tape, table, shape[2:], ctx.setting.params, "position biases")
    found = Value(found.storage, shape, found.dtype, found.origin)
    return operator(tape, Value(found.storage, shape, found.dtype), found, PASSED, saves=(buckets,))


class Kept(Gathered):
    """Biases to whose gradient this layer adds; their graph refers to the buckets of every pair of positions."""

    __slots__ = ("kept",)

    def __init__(self, kept: Storage) -> None:
        super().__init__()
        self.kept = kept


def _buckets(tape: Tape, pairs: tuple[int, ...], *, bidirectional: bool, named: bool = False) -> Storage:
    """``_relative_position_bucket``, statement by statement. ``named``: UMT5 has a variable for the logarithm."""
    relative = tape.new(pairs, "int64", "relative positions")  # a variable of compute_bias, too
    sign = tape.new(pairs, "int64", "relative positions") if bidirectional else None
    distance = tape.new(pairs, "int64", "relative positions")
    small = tape.new(pairs, "bool", "relative positions")
    halved = [tape.new(pairs, "fp32", "logarithm of relative positions") for _ in range(2)]
    large = tape.new(pairs, "int64", "relative positions")
    logarithm = halved.pop() if named else None
    del halved
    shifted = tape.new(pairs, "int64", "relative positions")
    del large
    most = tape.new(pairs, "int64", "relative positions")
    least = tape.new(pairs, "int64", "relative positions")
    del shifted, most
    chosen = tape.new(pairs, "int64", "relative positions")
    found = sign if sign is not None else tape.new(pairs, "int64", "position buckets")
    del relative, distance, small, least, chosen, logarithm
    return found


def _eager(ctx: Context, a: Attention, heads: tuple[Value, Value, Value], biases: Value) -> Value:
    """eager_attention_forward of modeling_t5.py: one variable holds the scores, then each result."""
    tape, s = ctx.tape, ctx.setting
    q, k, v = heads
    del heads
    copied = copied_operands(ctx, a, a.heads)
    shape = (q.shape[0], a.heads, q.shape[2], k.shape[2])
    weights = kernels.batched(tape, q, k, shape, "attention scores", copied[:2])
    weights = scale(tape, weights, "attention scaling")
    weights = _add(tape, weights, biases)
    if not a.bidirectional:
        weights = shift(tape, weights, "attention mask", s.params if tape.autocast else s.compute)
    weights = kernels.softmax(tape, weights, "fp32" if tape.autocast else None)
    weights = dropout(tape, weights, a.dropout)
    ctx.unused.append(weights)
    out = kernels.batched(tape, weights, v, (*q.shape[:3], v.shape[-1]), "attention output", (False, copied[2]))
    return copy(tape, out, "contiguous")


def _add(tape: Tape, scores: Value, biases: Value) -> Value:
    """``scores + biases`` of every sequence: keeps nothing; the biases' gradient is a sum over sequences."""
    dtype = promote(scores.dtype, biases.dtype)
    out = tape.value(scores.shape, dtype, "add biases")
    own, shape, several = scores.dtype, biases.shape, scores.shape[0] > 1
    small, wants = biases.dtype, biases.origin is not None
    full = scores.shape

    def run(grad: Storage) -> list[Storage | None]:
        total = None
        if wants:
            total = tape.new(shape, dtype, "sum over sequences") if several else grad
            total = total if dtype == small else tape.new(shape, small, "to backward")
        return [grad if dtype == own else tape.new(full, own, "to backward"), total]

    return tape.record(out, (scores, biases), run)


def _causal(tape: Tape, biases: Value) -> tuple[Value, Storage]:
    """``torch.where(causal_mask, biases, min)``, and its mask [queries, keys], which the graph keeps."""
    shape, dtype = biases.shape, biases.dtype
    mask = tape.new(shape[2:], "bool", "causal mask")
    out = tape.value(shape, dtype, "masked biases")
    return operator(tape, out, biases, "masked biases backward", saves=(mask,)), mask


def _unpadded(ctx: Context, biases: Value) -> Value:
    """``torch.where(attention_mask, biases, min)`` by the model's mask of every row: biases of every row."""
    tape, shape, label = ctx.tape, (ctx.batch, *biases.shape[1:]), "biases of every row"
    out = tape.value(shape, biases.dtype, label)
    if shape == biases.shape:
        return operator(tape, out, biases, label + " backward")
    whole = (shape, biases.dtype, label + " backward")
    return operator(tape, out, biases, "sum over sequences", temporaries=[whole])


def padded(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``pad_bias``: rows of a multiple of eight elements (aten/src/ATen/native/transformers/attention.cpp)."""
    before, dtype = x.shape, x.dtype
    out = tape.value(shape, dtype, "padded biases")
    out = operator(tape, out, x, "padded biases backward")
    return Value(out.storage, before, dtype, out.origin)


def kernel_with_biases(tape: Tape, q: Value, k: Value, v: Value, biases: Value) -> Value:
    """The memory-efficient kernel: q, k, v, biases, output and logsumexp are kept; biases get a gradient of every
    sequence, which is summed over these.
    """
    label = "efficient attention"
    shape = (*q.shape[:3], v.shape[-1])
    out = Value(tape.output("attention", shape, q.dtype, label), shape, q.dtype)
    lse = tape.output("attention", q.shape[:3], "fp32", label + " logsumexp")
    kept = (q.storage, k.storage, v.storage, out.storage, lse, biases.storage)
    shapes = [(t.shape, t.dtype) if t.origin is not None else None for t in (q, k, v)]
    wants, small, dtype = biases.origin is not None, biases.shape, biases.dtype
    wide = -(-k.shape[2] // GRADIENT_ALIGNMENT) * GRADIENT_ALIGNMENT
    full = (q.shape[0], *small[1:3], wide)

    def run(grad: Storage) -> list[Storage | None]:
        found: list[Storage | None] = [tape.new(s[0], s[1], label + " backward") if s else None for s in shapes]
        total = tape.new(full, dtype, "gradient of biases") if wants else None
        if total is not None and full[0] > small[0]:
            total = tape.new(small, dtype, "sum over sequences")
        return [*found, total]

    return tape.record(out, (q, k, v, biases), run, saves=kept)


def with_biases(ctx: Context, size: tuple[int, int], x: Value, trained: bool) -> Value:
    """``compute_position_bias`` (modeling_mpnet.py), in front of the layers: looked up, and copied for every sequence.

    The bytes that the model's variable holds of it, and those of its gradient, are counted outside the units.
    """
    tape, (rows, heads), s = ctx.tape, size, ctx.setting
    pairs = (ctx.sequence, ctx.sequence)
    named = [tape.new(pairs, "int64", "relative positions") for _ in range(2)]
    buckets = tape.new(pairs, "int64", "position buckets")
    del named
    table = ctx.register(Parameter("relative_attention_bias", (rows, heads), s.params, trained, has_grad=s.has_grad))
    found = embedding(tape, table, pairs, s.params, "position biases")
    found = operator(tape, Value(found.storage, found.shape, found.dtype), found, PASSED, saves=(buckets,))
    del buckets
    copies = tape.new((ctx.batch, heads, *pairs), s.params, "position biases of every sequence")
    del copies  # held by a variable of the model
    summed = [(found.shape, found.dtype, "sum over sequences")] if ctx.batch > 1 else []
    out = Value(x.storage, x.shape, x.dtype)
    return operator(tape, out, (x, found), [PASSED, "contiguous gradient"], temporaries=summed)


def _onto_given(ctx: Context, a: Attention, heads: tuple[Value, Value, Value]) -> Value:
    """MPNetSelfAttention.forward: biases are added in place; the scores keep their name while the probabilities are
    made.
    """
    tape, s = ctx.tape, ctx.setting
    q, k, v = heads
    del heads
    copied = copied_operands(ctx, a, a.heads)
    shape = (q.shape[0], a.heads, q.shape[2], k.shape[2])
    scores = kernels.batched(tape, q, k, shape, "attention scores", copied[:2])
    scores = scale(tape, scores, "attention scaling")
    biases = shared(tape, shape, s.params, wants=s.trained, starts=s.gathers)
    scores = _added_to(tape, scores, biases)
    if a.padded:
        scores = shift(tape, scores, "attention mask", s.params if tape.autocast else s.compute)
    weights = kernels.softmax(tape, scores, "fp32" if tape.autocast else None)
    weights = dropout(tape, weights, a.dropout)
    out = kernels.batched(tape, weights, v, (*q.shape[:3], v.shape[-1]), "attention output", (False, copied[2]))
    out = copy(tape, out, "contiguous")
    ctx.named += [scores, weights]
    return out


def _added_to(tape: Tape, scores: Value, biases: Value) -> Value:
    """``scores += biases`` of equal shapes: keeps nothing; the biases' gradient is the scores', cast to their dtype."""
    out = Value(scores.storage, scores.shape, scores.dtype)
    own = PASSED if scores.dtype == biases.dtype else (scores.shape, biases.dtype, "to backward")
    return operator(tape, out, (scores, biases), [PASSED, own])
