"""Attention kernels under Megatron: cuDNN's fused attention, FlashAttention, and the unfused ones.

Sources: TransformerEngine ``pytorch/attention/dot_product_attention/backends.py`` (FlashAttention, FusedAttnFunc,
UnfusedDotProductAttention), ``utils.py`` (get_qkv_layout); Megatron-core
``transformer/dot_product_attention.py``, ``fusions/fused_softmax.py``.

Queries, keys and values are [tokens, heads * head_dim]; sizes decide, not strides, except where a kernel copies.
"""

from __future__ import annotations

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.kernels import batched, softmax
from memcheck.autograd.operator import cast, copy, dropout, operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.megatron.context import AttentionWidths, context_attention
from memcheck.frameworks.megatron.linear import uses_te
from memcheck.record import Record


class Kernel(Record):
    """Dimensions of one attention on this rank."""

    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    packed: bool
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
    if not kernel.packed:
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
    if transposes or kernel.packed:
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
        expands=grouped_backward and kernel.kv_heads != kernel.heads,
    )
    return context_attention(ctx, widths, query, key, value)


def _unfused(ctx: Context, kernel: Kernel, query: Value, key: Value, value: Value, *, local: bool) -> Value:
    """Compute attention as separate kernels: scores, scaled masked softmax, dropout and the product with the values.

    The scores are [batch, heads, sequence, sequence]. ``local``: Megatron's own module, whose ``baddbmm`` input is the
    global memory buffer; otherwise TE's, which allocates that input.
    """
    tape, setting = ctx.tape, ctx.setting
    batch, length = setting.batch, setting.sequence
    if not kernel.packed and not local:
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
    in_fp32 = bool(setting.option("attention_softmax_in_fp32", True))
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
    fuses = bool(setting.option("masked_softmax_fusion", True))
    return fuses and 16 < setting.sequence <= 4096 and setting.sequence % 4 == 0


def _repeat_kv_heads(tape: Tape, x: Value, width: int) -> Value:
    """``repeat_interleave`` of grouped keys or values."""
    return operator(tape, tape.value((x.shape[0], width), x.dtype, "repeat_interleave"), x, "sum")
