"""Attention whose scores have relative position biases: T5's and MPNet's.

transformers 5.23 modeling_t5.py (T5Attention) and integrations/sdpa_attention.py (create_position_bias_mask): they are
the mask of the memory-efficient kernel, contiguous, and get a gradient of every head.
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.kernels import MASK_ALIGNMENT, embedding
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, copy, dropout, operator, scale, shift
from memcheck.autograd.tensor import Gathered, Parameter, Storage, Tape, Value, promote, round_up, shared
from memcheck.frameworks.transformers.eager import returns
from memcheck.frameworks.transformers.kernel_choice import copied_operands, kernel_of
from memcheck.models.types import Attention

GRADIENT_ALIGNMENT = 16
"""Elements to a multiple of which the kernel pads the rows of a mask's gradient (aten/src/ATen/native/transformers/
cuda/attention_backward.cu, ``lastDimAligned``)."""


def attend_with_biases(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Run attention with relative position biases (T5, MPNet), and return [batch, heads, sequence, v_head_dim].

    ``q``, ``k``: [batch, heads, sequence, head_dim], ``v``: [batch, heads, sequence, v_head_dim]. The memory-efficient
    kernel takes the biases as its additive mask, and computes their gradient. ``attention.position_bias`` says where
    they come from; the words are listed at that field of :class:`Attention`. Source: transformers 5.23 modeling_t5.py,
    T5Attention.
    """
    if attention.position_bias == "given":
        return _attend_with_model_biases(ctx, attention, (q, k, v))
    shape = (1, attention.heads, q.shape[2], k.shape[2])
    biases = _biases(ctx, attention, shape, q.dtype)
    has_own_table = attention.position_bias.startswith("own")  # otherwise the stack's layers share the biases
    (ctx.attention_locals if has_own_table else ctx.position_biases).append(biases)
    if kernel_of(ctx, attention) == "eager":
        return _eager(ctx, attention, (q, k, v), biases)
    tape = ctx.tape
    mask = None
    if not attention.bidirectional:
        biases, mask = _mask_causal(tape, biases)
    elif attention.row_masks == "padding":
        biases = _mask_padding(ctx, biases)
    if not attention.position_bias.endswith("zeros"):
        biases = copy(tape, biases, "contiguous biases")
    del mask
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
        biases = cast(tape, biases, tape.autocast)
    if shape[3] % MASK_ALIGNMENT:
        wide = round_up(shape[3], MASK_ALIGNMENT)
        biases = padded(tape, biases, (*biases.shape[:3], wide))
    return kernel_with_biases(tape, q, k, v, biases)


def _biases(ctx: Context, attention: Attention, shape: tuple[int, ...], dtype: str) -> Value:
    """Return the biases that are added to the scores, by ``attention.position_bias``: [1, heads, queries, keys].

    The first layer of a stack computes them (``table``), or makes zeros (``zeros``), and returns them for later layers
    (``shared``, ``shared-zeros``). A layer that has ``own`` or ``own-zeros`` makes them for itself. ``shape``: of the
    biases. ``dtype``: of zeros.
    """
    tape, setting = ctx.tape, ctx.setting
    if attention.position_bias == "own":
        return _layer_biases(ctx, attention, shape)
    if attention.position_bias == "own-zeros":
        return tape.value(shape, dtype, "zero biases")
    if attention.position_bias == "table":
        looked_up = _shared_biases(ctx, attention, shape)
        returns(ctx, [looked_up])
        return looked_up
    if attention.position_bias == "shared":
        return shared(
            tape, shape, setting.param_dtype, needs_grad=setting.trained, starts=setting.starts_shared_gradients
        )
    # `position_bias.requires_grad = True` where layers are checkpointed
    needs_grad = tape.frame is not None and tape.grad_enabled
    if attention.position_bias == "shared-zeros":
        return shared(tape, shape, dtype, needs_grad=needs_grad, starts=setting.starts_shared_gradients)
    zeros = tape.leaf(shape, dtype, "zero biases") if needs_grad else tape.value(shape, dtype, "zero biases")
    returns(ctx, [zeros])
    return zeros


def _shared_biases(ctx: Context, attention: Attention, shape: tuple[int, ...]) -> Value:
    """Replay ``compute_bias``: look up a bucket of the shared table for each pair of positions; the graph keeps the
    buckets.

    If later layers left a gradient of these biases, the look-up's gradient is added to it. The table's gradient is
    counted with this unit.
    """
    tape, pairs = ctx.tape, shape[2:]
    buckets = _buckets(tape, pairs, bidirectional=attention.bidirectional)
    tensor = next(t for t in attention.tensors if t.name.endswith("relative_attention_bias.weight"))
    table = ctx.parameter(tensor.name, tensor.shape)
    biases = embedding(tape, table, pairs, ctx.setting.param_dtype, "position biases")
    if not ctx.setting.starts_shared_gradients and biases.needs_grad:
        saves_nothing = tape.frame is not None and tape.frame.recomputed is None  # a checkpointed forward saves nothing
        return Value(biases.storage, shape, biases.dtype, Gathered() if saves_nothing else Kept(buckets))
    biases = Value(biases.storage, shape, biases.dtype, biases.origin)
    return operator(tape, Value(biases.storage, shape, biases.dtype), biases, GRAD_UNCHANGED, saves=(buckets,))


def _layer_biases(ctx: Context, attention: Attention, shape: tuple[int, ...]) -> Value:
    """Replay ``compute_bias`` of a layer's own table: [1, heads, queries, keys]; the look-up keeps the buckets."""
    tape = ctx.tape
    buckets = _buckets(tape, shape[2:], bidirectional=attention.bidirectional, named=True)
    tensor = next(t for t in attention.tensors if t.name.endswith("relative_attention_bias.weight"))
    table = ctx.parameter(tensor.name, tensor.shape)
    biases = embedding(tape, table, shape[2:], ctx.setting.param_dtype, "position biases")
    biases = Value(biases.storage, shape, biases.dtype, biases.origin)
    return operator(tape, Value(biases.storage, shape, biases.dtype), biases, GRAD_UNCHANGED, saves=(buckets,))


class Kept(Gathered):
    """Biases to whose gradient this layer adds; their graph refers to the buckets of every pair of positions."""

    __slots__ = ("kept",)

    def __init__(self, kept: Storage) -> None:
        super().__init__()
        self.kept = kept


def _buckets(tape: Tape, pairs: tuple[int, ...], *, bidirectional: bool, named: bool = False) -> Storage:
    """Replay ``_relative_position_bucket`` statement by statement, and return the int64 buckets [queries, keys].

    ``named``: UMT5 has a variable for the logarithm.
    """
    relative = tape.new(pairs, "int64", "relative positions")  # a variable of compute_bias, too
    sign = tape.new(pairs, "int64", "relative positions") if bidirectional else None
    distance = tape.new(pairs, "int64", "relative positions")
    is_small = tape.new(pairs, "bool", "relative positions")
    logarithms = [tape.new(pairs, "fp32", "logarithm of relative positions") for _ in range(2)]
    large = tape.new(pairs, "int64", "relative positions")
    logarithm = logarithms.pop() if named else None
    del logarithms
    shifted = tape.new(pairs, "int64", "relative positions")
    del large
    clamped = tape.new(pairs, "int64", "relative positions")
    bounds = tape.new(pairs, "int64", "relative positions")
    del shifted, clamped
    where_result = tape.new(pairs, "int64", "relative positions")
    buckets = sign if sign is not None else tape.new(pairs, "int64", "position buckets")
    del relative, distance, is_small, bounds, where_result, logarithm
    return buckets


def _eager(ctx: Context, attention: Attention, heads: tuple[Value, Value, Value], biases: Value) -> Value:
    """Replay T5's eager_attention_forward, and return [batch, heads, sequence, v_head_dim].

    ``heads``: q, k and v, each [batch, heads, sequence, head_dim]. ``biases``: added to the scores, [1, heads, queries,
    keys]. One variable holds the scores, then each later result.
    """
    tape, setting = ctx.tape, ctx.setting
    q, k, v = heads
    del heads
    copied = copied_operands(ctx, attention, attention.heads)
    shape = (q.shape[0], attention.heads, q.shape[2], k.shape[2])
    weights = kernels.batched(tape, q, k, shape, "attention scores", copied[:2])
    weights = scale(tape, weights, "attention scaling")
    weights = _add_biases(tape, weights, biases)
    if not attention.bidirectional:
        mask_dtype = setting.param_dtype if tape.autocast else setting.compute_dtype
        weights = shift(tape, weights, "attention mask", mask_dtype)
    weights = kernels.softmax(tape, weights, "fp32" if tape.autocast else None)
    weights = dropout(tape, weights, attention.dropout)
    ctx.unused_outputs.append(weights)
    out = kernels.batched(tape, weights, v, (*q.shape[:3], v.shape[-1]), "attention output", (False, copied[2]))
    return copy(tape, out, "contiguous")


def _add_biases(tape: Tape, scores: Value, biases: Value) -> Value:
    """Compute ``scores + biases``, [batch, heads, queries, keys]. Autograd keeps nothing.

    The biases' gradient is a sum over sequences.
    """
    dtype = promote(scores.dtype, biases.dtype)
    out = tape.value(scores.shape, dtype, "add biases")
    scores_dtype, biases_shape, sums_sequences = scores.dtype, biases.shape, scores.shape[0] > 1
    biases_dtype, needs_grad = biases.dtype, biases.needs_grad
    scores_shape = scores.shape

    def add_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradient of the scores in their dtype, and that of the biases, summed over sequences."""
        biases_grad = None
        if needs_grad:
            biases_grad = tape.new(biases_shape, dtype, "sum over sequences") if sums_sequences else grad
            if dtype != biases_dtype:
                biases_grad = tape.new(biases_shape, biases_dtype, "to backward")
        scores_grad = grad if dtype == scores_dtype else tape.new(scores_shape, scores_dtype, "to backward")
        return [scores_grad, biases_grad]

    return tape.record(out, (scores, biases), add_backward)


def _mask_causal(tape: Tape, biases: Value) -> tuple[Value, Storage]:
    """Replay ``torch.where(causal_mask, biases, min)``; the graph keeps the mask, [queries, keys]."""
    shape, dtype = biases.shape, biases.dtype
    mask = tape.new(shape[2:], "bool", "causal mask")
    out = tape.value(shape, dtype, "masked biases")
    return operator(tape, out, biases, "masked biases backward", saves=(mask,)), mask


def _mask_padding(ctx: Context, biases: Value) -> Value:
    """Replay ``torch.where(attention_mask, biases, min)`` with the model's padding mask: biases for each sequence."""
    tape, shape, label = ctx.tape, (ctx.batch, *biases.shape[1:]), "biases of every row"
    out = tape.value(shape, biases.dtype, label)
    if shape == biases.shape:
        return operator(tape, out, biases, label + " backward")
    full_grad = (shape, biases.dtype, label + " backward")
    return operator(tape, out, biases, "sum over sequences", temporaries=[full_grad])


def padded(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """Replay ``pad_bias``: rows are padded to 8 elements (aten/src/ATen/native/transformers/attention.cpp).

    ``shape``: with the padding, which the new storage has. Returns a view of it in the shape of ``x``.
    """
    out = operator(tape, tape.value(shape, x.dtype, "padded biases"), x, "padded biases backward")
    return Value(out.storage, x.shape, x.dtype, out.origin)


def kernel_with_biases(tape: Tape, q: Value, k: Value, v: Value, biases: Value) -> Value:
    """Run the memory-efficient attention kernel with an additive mask, and return [batch, heads, sequence, v_head_dim].

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. ``biases``: the mask, [1 or batch, heads, queries, keys].
    Autograd saves q, k, v, biases, output and logsumexp. The biases' gradient is computed for each sequence, and then
    summed over sequences.
    """
    label = "efficient attention"
    shape = (*q.shape[:3], v.shape[-1])
    out = Value(tape.output("attention", shape, q.dtype, label), shape, q.dtype)
    lse = tape.output("attention", q.shape[:3], "fp32", label + " logsumexp")
    saved = (q.storage, k.storage, v.storage, out.storage, lse, biases.storage)
    grad_specs = [(t.shape, t.dtype) if t.needs_grad else None for t in (q, k, v)]
    needs_grad, biases_shape, dtype = biases.needs_grad, biases.shape, biases.dtype
    padded_keys = round_up(k.shape[2], GRADIENT_ALIGNMENT)
    full_grad_shape = (q.shape[0], *biases_shape[1:3], padded_keys)

    def attention_backward(grad: Storage) -> list[Storage | None]:
        """Return the gradients of q, k, v and of the biases, which the kernel allocates together."""
        gradients = [tape.new(*spec, label + " backward") if spec else None for spec in grad_specs]
        biases_grad = tape.new(full_grad_shape, dtype, "gradient of biases") if needs_grad else None
        if biases_grad is not None and full_grad_shape[0] > biases_shape[0]:
            biases_grad = tape.new(biases_shape, dtype, "sum over sequences")
        return [*gradients, biases_grad]

    return tape.record(out, (q, k, v, biases), attention_backward, saves=saved)


def with_biases(ctx: Context, size: tuple[int, int], x: Value, trained: bool) -> Value:
    """Replay ``compute_position_bias`` of MPNet before the layers: biases are looked up and copied for every sequence.

    ``size``: rows and heads of the table. The copies, a variable of the model, and their gradient are counted outside
    the units. Returns ``x`` unchanged.
    """
    tape, (rows, heads), setting = ctx.tape, size, ctx.setting
    pairs = (ctx.sequence, ctx.sequence)
    named = [tape.new(pairs, "int64", "relative positions") for _ in range(2)]
    buckets = tape.new(pairs, "int64", "position buckets")
    del named
    table = ctx.register(
        Parameter("relative_attention_bias", (rows, heads), setting.param_dtype, trained, has_grad=setting.has_grad)
    )
    biases = embedding(tape, table, pairs, setting.param_dtype, "position biases")
    biases = operator(tape, Value(biases.storage, biases.shape, biases.dtype), biases, GRAD_UNCHANGED, saves=(buckets,))
    del buckets
    copies = tape.new((ctx.batch, heads, *pairs), setting.param_dtype, "position biases of every sequence")
    del copies  # held by a variable of the model
    summed_grads = [(biases.shape, biases.dtype, "sum over sequences")] if ctx.batch > 1 else []
    out = Value(x.storage, x.shape, x.dtype)
    return operator(tape, out, (x, biases), [GRAD_UNCHANGED, "contiguous gradient"], temporaries=summed_grads)


def _attend_with_model_biases(ctx: Context, attention: Attention, heads: tuple[Value, Value, Value]) -> Value:
    """Replay MPNetSelfAttention.forward, and return [batch, heads, sequence, v_head_dim].

    ``heads``: q, k and v, each [batch, heads, sequence, head_dim]. Biases are added in place, and the scores are a
    variable during the softmax.
    """
    tape, setting = ctx.tape, ctx.setting
    q, k, v = heads
    del heads
    copied = copied_operands(ctx, attention, attention.heads)
    shape = (q.shape[0], attention.heads, q.shape[2], k.shape[2])
    scores = kernels.batched(tape, q, k, shape, "attention scores", copied[:2])
    scores = scale(tape, scores, "attention scaling")
    biases = shared(
        tape, shape, setting.param_dtype, needs_grad=setting.trained, starts=setting.starts_shared_gradients
    )
    scores = _add_in_place(tape, scores, biases)
    if attention.row_masks == "padding":
        mask_dtype = setting.param_dtype if tape.autocast else setting.compute_dtype
        scores = shift(tape, scores, "attention mask", mask_dtype)
    weights = kernels.softmax(tape, scores, "fp32" if tape.autocast else None)
    weights = dropout(tape, weights, attention.dropout)
    out = kernels.batched(tape, weights, v, (*q.shape[:3], v.shape[-1]), "attention output", (False, copied[2]))
    out = copy(tape, out, "contiguous")
    ctx.attention_locals += [scores, weights]
    return out


def _add_in_place(tape: Tape, scores: Value, biases: Value) -> Value:
    """Replay ``scores += biases`` of equal shapes. Autograd keeps nothing, and the biases' gradient is the scores',
    cast.
    """
    out = Value(scores.storage, scores.shape, scores.dtype)
    biases_grad = GRAD_UNCHANGED if scores.dtype == biases.dtype else (scores.shape, biases.dtype, "to backward")
    return operator(tape, out, (scores, biases), [GRAD_UNCHANGED, biases_grad])
