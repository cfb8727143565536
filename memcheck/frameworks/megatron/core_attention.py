"""Attention kernels under Megatron: cuDNN's fused attention, FlashAttention, and the unfused ones.

Sources: TransformerEngine ``pytorch/attention/dot_product_attention/backends.py`` (FlashAttention, FusedAttnFunc,
UnfusedDotProductAttention), ``utils.py`` (get_qkv_layout); Megatron-core
``transformer/dot_product_attention.py``, ``fusions/fused_softmax.py``.

Queries, keys and values are [tokens, heads * head_dim]; sizes decide, not strides, except where a kernel copies.

Attention over sequences that the context group has cut: ring (p2p), all-gather, all-to-all, all-to-all in a ring.

Source: TransformerEngine ``pytorch/attention/dot_product_attention/context_parallel.py`` (AttnFuncWithCPAndKVP2P,
AttnFuncWithCPAndKVAllGather, AttnFuncWithCPAndQKVOA2A, flash_attn_a2a_communicate). The rank with the most work is
counted: the last one, whose queries see every key, so that no step of the ring is a half.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.kernels import batched, softmax
from memcheck.autograd.operator import cast, copy, dropout, operator
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.linear import uses_te
from memcheck.record import Record

KINDS = ("p2p", "all_gather", "a2a", "a2a+p2p")
"""Values of ``cp_comm_type``."""


class AttentionWidths(Record):
    """Widths and heads of one attention, and whether its kernel writes dK and dV per query head first."""

    heads: int
    """Query heads on this rank."""
    qk_dim: int
    """Dimensions of a head of queries and keys."""
    v_dim: int
    """Dimensions of a head of values."""
    expands_kv_gradients: bool
    """The kernel writes dK and dV for each query head before it sums them over heads that share a key."""


def exchange(setting: Setting) -> str:
    """Return the kind of exchange of context parallelism (``cp_comm_type``); empty without context parallelism.

    Raises:
        UnsupportedError: the layers exchange in different ways; one layer is estimated for all of them.
    """
    if setting.context_parallel == 1:
        return ""
    stated = setting.option("cp_comm_type", "p2p")
    kinds = {str(k) for k in stated} if isinstance(stated, (list, tuple)) else {str(stated)}
    if len(kinds) == 1:
        return kinds.pop()
    raise UnsupportedError(
        "cp_comm_type differs between layers, and memcheck prices one exchange for all of them",
        "state one of p2p, all_gather, a2a or a2a+p2p; p2p needs the most memory",
        "/training/options/cp_comm_type",
    )


def ring_ranks(setting: Setting) -> int:
    """Return the number of ranks on one ring: the context group, or its outer group under ``a2a+p2p``.

    The outer sizes are those of ``hierarchical_context_parallel_sizes`` after the first.
    """
    if exchange(setting) != "a2a+p2p":
        return setting.context_parallel
    stated = setting.option("hierarchical_context_parallel_sizes")
    sizes = [n for n in stated if isinstance(n, int)] if isinstance(stated, (list, tuple)) else []
    if isinstance(stated, (list, tuple)) and len(sizes) != len(stated):
        raise UnsupportedError(
            "hierarchical_context_parallel_sizes is no list of whole numbers",
            "write the sizes from the inner group to the outer one: [2, 2]",
            "/training/options/hierarchical_context_parallel_sizes",
        )
    return prod(sizes[1:]) if sizes else setting.context_parallel


def context_attention(ctx: Context, widths: AttentionWidths, query: Value, key: Value, value: Value) -> Value:
    """Compute the attention of this rank's queries over the whole sequence under context parallelism.

    ``query``, ``key``, ``value``: this rank's tokens, [tokens, heads * head width]. ``widths``: number of heads and
    their widths. ``cp_comm_type`` selects the exchange. Returns [tokens, heads * v_dim].
    """
    kind = exchange(ctx.setting)
    if kind == "all_gather":
        return _all_gather_attention(ctx, widths, query, key, value)
    if kind == "p2p":
        return _ring_attention(ctx, widths, query, key, value)
    if not kind:
        return _full_sequence_attention(ctx, widths, query, key, value)
    query, key, value = _to_heads(ctx.tape, (query, key, value))
    attend = _ring_attention if kind == "a2a+p2p" else _full_sequence_attention
    out = attend(ctx, widths, query, key, value)
    del query, key, value
    return _to_tokens(ctx.tape, out)


def _attention_backward(tape: Tape, widths: AttentionWidths, query: Value, key: Value, value: Value) -> list[Storage]:
    """Allocate the tensors of one call of the attention backward kernel, and return dQ, dK and dV.

    ``query``, ``key``, ``value``: give their shapes and dtypes. dQ is accumulated in fp32 (cuDNN's workspace,
    FlashAttention's dq_accum). If ``widths.expands``, the kernel writes dK and dV for each query head before it sums
    them over the heads that share a key.
    """
    tokens = query.shape[0]
    accumulator = tape.new((tokens, widths.heads * widths.qk_dim), "fp32", "dQ accumulator")
    gradients = [tape.new(t.shape, t.dtype, "attention backward") for t in (query, key, value)]
    if widths.expands_kv_gradients:
        expanded = [
            tape.new((key.shape[0], widths.heads * head_dim), key.dtype, "expanded dK, dV")
            for head_dim in (widths.qk_dim, widths.v_dim)
        ]
        del expanded
    del accumulator
    return gradients


def _full_sequence_attention(ctx: Context, widths: AttentionWidths, query: Value, key: Value, value: Value) -> Value:
    """Compute attention over the whole sequence with one kernel: without context ranks, or after an all-to-all.

    After an all-to-all the rank has 1/cp of the heads for all tokens: as many elements as all heads for 1/cp of the
    tokens, so that the shapes of ``query``, ``key`` and ``value`` are used unchanged. Saves q, k, v, the output and
    softmax statistics.
    """
    tape = ctx.tape
    out = tape.value((query.shape[0], widths.heads * widths.v_dim), query.dtype, "attention output")
    stats = tape.new((query.shape[0], widths.heads), "fp32", "softmax statistics")
    saved = (query.storage, key.storage, value.storage, out.storage, stats)
    qkv_shapes = tuple(Value(None, t.shape, t.dtype) for t in (query, key, value))

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dQ, dK and dV of one kernel."""
        return list(_attention_backward(tape, widths, *qkv_shapes))

    return tape.record(out, (query, key, value), run, saves=saved)


def _ring_attention(ctx: Context, widths: AttentionWidths, query: Value, key: Value, value: Value) -> Value:
    """Compute ring attention (``cp_comm_type: p2p``), in which k and v of all ranks pass by: [tokens, heads * v_dim].

    Each step allocates a buffer of k and v, an output and statistics. Saves q, the last buffer of k and v, the summed
    output and its statistics. Source: TransformerEngine context_parallel.py, AttnFuncWithCPAndKVP2P.
    """
    tape, steps = ctx.tape, ring_ranks(ctx.setting)
    tokens, kv_elements = query.shape[0], key.numel + value.numel
    output_shape = (tokens, widths.heads * widths.v_dim)
    buffers = [tape.new((kv_elements,), key.dtype, "k and v ring buffer") for _ in range(steps)]
    step_outputs = [tape.new(output_shape, query.dtype, "attention output of a ring step") for _ in range(steps)]
    step_stats = [tape.new((tokens, widths.heads), "fp32", "softmax statistics of a ring step") for _ in range(steps)]
    stats = tape.new((tokens, widths.heads), "fp32", "softmax statistics")
    out = tape.value(output_shape, query.dtype, "attention output")
    saved = (query.storage, buffers[-1], out.storage, stats)
    dtype = key.dtype
    qkv_shapes = tuple(Value(None, t.shape, t.dtype) for t in (query, key, value))
    del buffers, step_outputs, step_stats

    def run(grad: Storage) -> list[Storage | None]:
        """Backward ring: dQ stays here, while two buffers of k, v, dK and dV travel; returns views of the last
        received.
        """
        dq = tape.new(qkv_shapes[0].shape, qkv_shapes[0].dtype, "dQ")
        # two buffers of (k, v) and (dK, dV); the gradients that leave are views of one of them
        send_buffer = tape.new((2 * kv_elements,), dtype, "ring buffer of k, v and their gradients")
        receive_buffer = tape.new((2 * kv_elements,), dtype, "ring buffer of k, v and their gradients")
        step_gradients = _attention_backward(tape, widths, *qkv_shapes)
        del step_gradients, send_buffer
        return [dq, receive_buffer, receive_buffer]

    return tape.record(out, (query, key, value), run, saves=saved)


def _all_gather_attention(ctx: Context, widths: AttentionWidths, query: Value, key: Value, value: Value) -> Value:
    """Compute attention over gathered keys and values (``cp_comm_type: all_gather``): [tokens, heads * v_dim].

    For balance under the causal mask each context rank has one early and one late chunk of the sequence, and runs the
    kernel once for each. Saves the local query, key, value and the output; backward gathers keys and values again.
    """
    tape, ranks = ctx.tape, ctx.setting.context_parallel
    tokens = query.shape[0]
    output_shape = (tokens, widths.heads * widths.v_dim)
    stats = [tape.new((tokens, widths.heads), "fp32", "softmax statistics")]
    gathered_kv = _gather_kv(tape, ranks, key, value)
    out = tape.value(output_shape, query.dtype, "attention output")
    half_outputs = [tape.new(output_shape, query.dtype, "attention output of both halves") for _ in range(2)]
    del gathered_kv, half_outputs
    saved = (query.storage, key.storage, value.storage, out.storage, *stats)
    qkv_shapes = tuple(Value(None, t.shape, t.dtype) for t in (query, key, value))
    del stats

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: gather k and v again, run the kernel for both halves of the queries, reduce-scatter dK and dV."""
        local_q, k, v = qkv_shapes
        dq = tape.new(local_q.shape, local_q.dtype, "dQ")
        dk, dv = (tape.new(_gathered_shape(t.shape, ranks), t.dtype, "dK, dV of the whole sequence") for t in (k, v))
        gathered_kv = _gather_kv(tape, ranks, k, v)
        half = Value(None, (ceil_div(local_q.shape[0], 2), local_q.shape[1]), local_q.dtype)
        # under the causal mask both halves together read half a rank's tokens more than the whole sequence
        visible_kv = [Value(None, (t.shape[0] * ranks + ceil_div(t.shape[0], 2), t.shape[1]), t.dtype) for t in (k, v)]
        half_gradients = _attention_backward(tape, widths, half, *visible_kv)
        first_half_dq = tape.new(half.shape, half.dtype, "attention backward")
        dk = tape.new(_gathered_shape(k.shape, ranks), k.dtype, "index_select dK")
        dv = tape.new(_gathered_shape(v.shape, ranks), v.dtype, "index_select dV")
        results: list[Storage | None] = [dq]
        results += [tape.new(t.shape, t.dtype, "reduce-scatter dK, dV") for t in (k, v)]
        del dk, dv, gathered_kv, half_gradients, first_half_dq
        return results

    return tape.record(out, (query, key, value), run, saves=saved)


def _gathered_shape(shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    """Return the shape of a tensor after all ``ranks`` context ranks have gathered their tokens."""
    return (shape[0] * ranks, *shape[1:])


def _gather_kv(tape: Tape, ranks: int, key: Value, value: Value) -> list[Storage]:
    """Gather keys and values of all ranks, then copy each into sequence order; return the two copies."""
    gathered = [tape.new(_gathered_shape(t.shape, ranks), t.dtype, "all-gather k and v") for t in (key, value)]
    ordered: list[Storage] = []
    for t in (key, value):
        ordered.append(tape.new(_gathered_shape(t.shape, ranks), t.dtype, "index_select k and v"))
        gathered.pop(0)
    return ordered


def _to_heads(tape: Tape, inputs: tuple[Value, ...]) -> list[Value]:
    """Exchange tokens for heads before attention: an all-to-all, then a copy in sequence order for each of q, k, v.

    The permuted copies of all three live until the last exchange.
    """
    permuted = [tape.new(t.shape, t.dtype, "permute for all-to-all") for t in inputs]
    exchanged: list[Value] = []
    for t in inputs:
        received = tape.new(t.shape, t.dtype, "all-to-all over the context group")
        out = tape.value(t.shape, t.dtype, "index_select after all-to-all")
        del received
        exchanged.append(tape.record(out, (t,), _all_to_all_backward(tape, t)))
    del permuted
    return exchanged


def _to_tokens(tape: Tape, x: Value) -> Value:
    """Exchange heads for tokens after attention: an ordered copy, the all-to-all and a permuted copy."""
    ordered = tape.new(x.shape, x.dtype, "index_select for all-to-all")
    received = tape.new(x.shape, x.dtype, "all-to-all over the context group")
    out = tape.value(x.shape, x.dtype, "permute after all-to-all")
    del ordered, received
    return tape.record(out, (x,), _all_to_all_backward(tape, x))


def _all_to_all_backward(tape: Tape, x: Value) -> Callable[[Storage], list[Storage | None]]:
    """Return the backward of an exchange of ``x``: two temporaries and the gradient, each of x's size."""
    shape, dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: reorder, exchange the gradient with an all-to-all, and reorder again."""
        ordered = tape.new(shape, dtype, "reorder for all-to-all")
        received = tape.new(shape, dtype, "all-to-all backward")
        out = tape.new(shape, dtype, "reorder after all-to-all")
        del ordered, received
        return [out]

    return run


class Kernel(Record):
    """Dimensions of one attention on this rank."""

    heads: int
    """Query heads on this rank."""
    kv_heads: int
    """Heads of keys and values on this rank."""
    qk_dim: int
    """Dimensions of a head of queries and keys."""
    v_dim: int
    """Dimensions of a head of values."""
    qkv_is_one_tensor: bool
    """q, k and v are views of one tensor interleaved per head (no rotary embedding, ungrouped heads)."""
    dropout: float = 0.0


def core_attention(ctx: Context, kernel: Kernel, query: Value, key: Value, value: Value) -> Value:
    """Compute attention over all heads of this rank with the backend that the plan names: [tokens, heads * v_dim].

    ``query``: [tokens, heads * qk_dim]. ``key``, ``value``: [tokens, kv_heads * dim].
    """
    backend = ctx.setting.attention
    if not uses_te(ctx.setting) or backend == "local":
        return _unfused(ctx, kernel, query, key, value, local=True)
    if backend in ("unfused", "eager"):
        return _unfused(ctx, kernel, query, key, value, local=False)
    if not kernel.qkv_is_one_tensor:
        # get_qkv_layout accepts views of one buffer or three separate tensors; others are made contiguous
        key, value = contiguous(ctx.tape, key, "contiguous k"), contiguous(ctx.tape, value, "contiguous v")
    if backend == "flash":
        return _flash(ctx, kernel, query, key, value)
    return _fused(ctx, kernel, query, key, value)


def contiguous(tape: Tape, x: Value, label: str) -> Value:
    """Copy ``x`` if it is a view of a larger tensor (``.contiguous()``)."""
    if x.storage is None or x.storage.numel == x.numel:
        return x
    return copy(tape, x, label)


def _flash(ctx: Context, kernel: Kernel, query: Value, key: Value, value: Value) -> Value:
    """Compute attention with FlashAttention, which takes [batch, sequence, heads, head_dim].

    Batches larger than one are transposed into copies. Version 2 has one width for queries, keys and values: narrower
    values are padded, and so is the output that it saves (dot_product_attention.py, ``_pad_qkv_head_dim``).
    """
    tape = ctx.tape
    v_dim = kernel.v_dim
    if v_dim != kernel.qk_dim:
        value = _resize_heads(tape, value, kernel.heads * kernel.qk_dim, "padded v")
        kernel = kernel._replace(v_dim=kernel.qk_dim)
    transposes = ctx.setting.batch > 1
    if transposes or kernel.qkv_is_one_tensor:
        query, key, value = (copy(tape, t, "transpose(0, 1).contiguous()") for t in (query, key, value))
    out = _saving_kernel(ctx, kernel, query, key, value, grouped_backward=True)
    del query, key, value
    if transposes:
        out = copy(tape, out, "transpose(0, 1).contiguous()")
    return (
        out if v_dim == kernel.v_dim else _resize_heads(tape, out, kernel.heads * v_dim, "output without its padding")
    )


def _resize_heads(tape: Tape, x: Value, width: int, label: str) -> Value:
    """Pad the heads of ``x``, or cut their padding off, to [tokens, width]: one copy forward, another one backward."""
    return operator(tape, tape.value((x.shape[0], width), x.dtype, label), x, label + " backward")


def _fused(ctx: Context, kernel: Kernel, query: Value, key: Value, value: Value) -> Value:
    """cuDNN's fused attention in [sequence, batch, heads, head_dim]."""
    return _saving_kernel(ctx, kernel, query, key, value, grouped_backward=False)


def _saving_kernel(
    ctx: Context, kernel: Kernel, query: Value, key: Value, value: Value, *, grouped_backward: bool
) -> Value:
    """Run a fused attention kernel, which saves q, k, v, the output and fp32 softmax statistics.

    Context parallelism exchanges tokens before and after it. ``grouped_backward``: backward writes dK and dV for each
    query head, and then sums over the heads that share a key.
    """
    widths = AttentionWidths(
        heads=kernel.heads,
        qk_dim=kernel.qk_dim,
        v_dim=kernel.v_dim,
        expands_kv_gradients=grouped_backward and kernel.kv_heads != kernel.heads,
    )
    return context_attention(ctx, widths, query, key, value)


def _unfused(ctx: Context, kernel: Kernel, query: Value, key: Value, value: Value, *, local: bool) -> Value:
    """Compute attention as separate kernels: scores, scaled masked softmax, dropout and the product with the values.

    The scores are [batch, heads, sequence, sequence]. ``local``: Megatron's own module, whose ``baddbmm`` input is the
    global memory buffer; otherwise TE's, which allocates that input.
    """
    tape, setting = ctx.tape, ctx.setting
    batch, length = setting.batch, setting.sequence
    if not kernel.qkv_is_one_tensor and not local:
        key, value = contiguous(tape, key, "contiguous k"), contiguous(tape, value, "contiguous v")
    caller_kv = key, value  # the caller's variables keep both alive until forward() returns
    mask = None if local else tape.new((length, length), "bool", "get_full_mask")
    if kernel.kv_heads != kernel.heads:
        key, value = (
            _repeat_kv_heads(tape, t, kernel.heads * head_dim)
            for t, head_dim in ((key, kernel.qk_dim), (value, kernel.v_dim))
        )
    scores_shape = (batch, kernel.heads, length, length)
    # local: the first argument of baddbmm is the global memory buffer; TE allocates one
    baddbmm_input = None if local else tape.new(scores_shape, query.dtype, "matmul input buffer")
    scores = batched(tape, query, key, scores_shape, "attention scores")  # a local variable to the end of forward()
    del baddbmm_input, query, key
    weights = dropout(tape, _scaled_softmax(ctx, kernel, scores, value.dtype), kernel.dropout)
    out = batched(tape, weights, value, (batch * length, kernel.heads * kernel.v_dim), "attention output")
    out = copy(tape, out, "contiguous")
    del weights, value, scores, mask, caller_kv
    return out


def _scaled_softmax(ctx: Context, kernel: Kernel, scores: Value, dtype: str) -> Value:
    """Compute the masked softmax of the scores: one fused kernel that saves its result, or torch's operators.

    torch's softmax is in fp32 (``attention_softmax_in_fp32``) and its result is cast back to ``dtype``.
    """
    tape, setting = ctx.tape, ctx.setting
    if has_fused_softmax(setting, kernel.heads):
        out = tape.value(scores.shape, scores.dtype, "masked softmax")
        shape = scores.shape
        return operator(tape, out, scores, (shape, dtype, "masked softmax backward"), saves=(out,))
    in_fp32 = bool(setting.option("attention_softmax_in_fp32", default=True))
    if not in_fp32:
        return softmax(tape, scores)
    fp32_scores = cast(tape, scores, "fp32")
    masked = _fill_mask(ctx, fp32_scores, through_view=fp32_scores is scores)
    del fp32_scores, scores
    probabilities = softmax(tape, masked)
    narrow = cast(tape, probabilities, dtype, "attention probabilities")
    del masked, probabilities
    return narrow


def _fill_mask(ctx: Context, x: Value, *, through_view: bool) -> Value:
    """Record ``attention_scores.masked_fill_(mask, -10000.0)``; TE joins the masks anew in each layer (softmax.py).

    ``through_view``: no cast has copied the scores, so they are a view of the product's result. CopySlices then
    allocates a full-size gradient, clones the slice, and runs masked_fill's backward on the clone (torch
    ``csrc/autograd/functions/tensor.cpp``). AsStridedBackward allocates another full-size gradient.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    mask = tape.new(shape[-2:], "bool", "attention mask") if uses_te(ctx.setting) else None

    def fill(grad: Storage) -> list[Storage | None]:
        """Backward: masked_fill's gradient, or what CopySlices allocates in its place."""
        if not through_view:
            return [tape.new(shape, dtype, "masked_fill backward")]
        full_gradient = tape.new(shape, dtype, "CopySlices result")
        slice_clones = [tape.new(shape, dtype, f"CopySlices {what}") for what in ("slice", "masked_fill backward")]
        del slice_clones
        return [full_gradient]

    filled = tape.record(Value(x.storage, shape, dtype), (x,), fill, saves=(mask,))
    if not through_view:
        return filled
    return operator(tape, Value(x.storage, shape, dtype), filled, (shape, dtype, "as_strided backward"))


def has_fused_softmax(setting: Setting, heads: int) -> bool:
    """Say whether the fused masked softmax takes these scores (``FusedScaleMaskSoftmax.is_kernel_available``).

    Megatron's asks for the option ``masked_softmax_fusion``, TE's does not. ``heads``: of this rank.
    """
    if setting.compute_dtype == "fp32" or (setting.batch * heads) % 4:
        return False
    if uses_te(setting):
        return 16 < setting.sequence < 16384 and setting.sequence % 8 == 0
    fuses = bool(setting.option("masked_softmax_fusion", default=True))
    return fuses and 16 < setting.sequence <= 4096 and setting.sequence % 4 == 0


def _repeat_kv_heads(tape: Tape, x: Value, width: int) -> Value:
    """``repeat_interleave`` of grouped keys or values."""
    return operator(tape, tape.value((x.shape[0], width), x.dtype, "repeat_interleave"), x, "sum")
