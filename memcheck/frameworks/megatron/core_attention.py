"""Attention kernels under Megatron: cuDNN's fused attention, FlashAttention, and the unfused ones.

Sources: TransformerEngine ``pytorch/attention/dot_product_attention/backends.py`` (FlashAttention, FusedAttnFunc,
UnfusedDotProductAttention), ``utils.py`` (get_qkv_layout); Megatron-core
``transformer/dot_product_attention.py``, ``fusions/fused_softmax.py``.

Queries, keys and values are [tokens, heads * head_dim]; sizes decide, not strides, except where a kernel copies.
"""

from __future__ import annotations

from memcheck.autograd.attention import batched, softmax
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.elementwise import cast, copy, dropout
from memcheck.autograd.operator import operator
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


def core_attention(ctx: Context, k: Kernel, q: Value, key: Value, value: Value) -> Value:
    """Attention over all heads of this rank: [tokens, heads * v_dim]."""
    backend = ctx.setting.attention
    if not uses_te(ctx.setting) or backend == "local":
        return _unfused(ctx, k, q, key, value, local=True)
    if backend in ("unfused", "eager"):
        return _unfused(ctx, k, q, key, value, local=False)
    if not k.packed:
        # get_qkv_layout: anything but views of one buffer, or three tensors of their own, is made contiguous
        key, value = contiguous(ctx.tape, key, "contiguous k"), contiguous(ctx.tape, value, "contiguous v")
    if backend == "flash":
        return _flash(ctx, k, q, key, value)
    return _fused(ctx, k, q, key, value)


def contiguous(tape: Tape, x: Value, label: str) -> Value:
    """``.contiguous()`` of a view of a larger tensor."""
    if x.storage is None or x.storage.numel == x.numel:
        return x
    return copy(tape, x, label)


def _flash(ctx: Context, k: Kernel, q: Value, key: Value, value: Value) -> Value:
    """FlashAttention wants [batch, sequence, heads, head_dim]: batches larger than one are transposed into copies.

    Version 2 has one width for queries, keys and values: narrower values are padded, and so is what it keeps of its
    output (dot_product_attention.py, ``_pad_qkv_head_dim``).
    """
    tape = ctx.tape
    width = k.v_dim
    if width != k.qk_dim:
        value = _resized(tape, value, k.heads * k.qk_dim, "padded v")
        k = k._replace(v_dim=k.qk_dim)
    moves = ctx.setting.batch > 1
    if moves or k.packed:
        q, key, value = (copy(tape, t, "transpose(0, 1).contiguous()") for t in (q, key, value))
    out = _kernel(ctx, k, q, key, value, grouped_backward=True)
    del q, key, value
    if moves:
        out = copy(tape, out, "transpose(0, 1).contiguous()")
    return out if width == k.v_dim else _resized(tape, out, k.heads * width, "output without its padding")


def _resized(tape: Tape, x: Value, width: int, label: str) -> Value:
    """Heads that are padded, or whose padding is cut off: a copy, and backward another one."""
    return operator(tape, tape.value((x.shape[0], width), x.dtype, label), x, label + " backward")


def _fused(ctx: Context, k: Kernel, q: Value, key: Value, value: Value) -> Value:
    """cuDNN's fused attention in [sequence, batch, heads, head_dim]."""
    return _kernel(ctx, k, q, key, value, grouped_backward=False)


def _kernel(ctx: Context, k: Kernel, q: Value, key: Value, value: Value, *, grouped_backward: bool) -> Value:
    """Keeps q, k, v, the output and fp32 softmax statistics; context parallelism exchanges tokens around it."""
    sides = AttentionWidths(
        heads=k.heads, qk_dim=k.qk_dim, v_dim=k.v_dim, expands=grouped_backward and k.kv_heads != k.heads
    )
    return context_attention(ctx, sides, q, key, value)


def _unfused(ctx: Context, k: Kernel, q: Value, key: Value, value: Value, *, local: bool) -> Value:
    """Scores, scaled masked softmax, dropout, product: [batch * heads, sequence, sequence]."""
    tape, s = ctx.tape, ctx.setting
    b, length = s.batch, s.sequence
    if not k.packed and not local:
        key, value = contiguous(tape, key, "contiguous k"), contiguous(tape, value, "contiguous v")
    given = key, value  # the caller's, to the end
    mask = None if local else tape.new((length, length), "bool", "get_full_mask")
    if k.kv_heads != k.heads:
        key, value = (_repeat(tape, t, k.heads * d) for t, d in ((key, k.qk_dim), (value, k.v_dim)))
    scores_shape = (b, k.heads, length, length)
    # local: the first argument of baddbmm is the global memory buffer; TE allocates one
    buffer = None if local else tape.new(scores_shape, q.dtype, "matmul input buffer")
    scores = batched(tape, q, key, scores_shape, "attention scores")  # a local variable to the end of forward()
    del buffer, q, key
    weights = dropout(tape, _scaled_softmax(ctx, k, scores, value.dtype), k.dropout)
    out = batched(tape, weights, value, (b * length, k.heads * k.v_dim), "attention output")
    out = copy(tape, out, "contiguous")
    del weights, value, scores, mask, given
    return out


def _scaled_softmax(ctx: Context, k: Kernel, scores: Value, dtype: str) -> Value:
    """One kernel that keeps its half-precision result, or torch's softmax in fp32 and a copy."""
    tape, s = ctx.tape, ctx.setting
    if has_fused_softmax(s, k.heads):
        out = tape.value(scores.shape, scores.dtype, "masked softmax")
        shape = scores.shape
        return operator(tape, out, scores, (shape, dtype, "masked softmax backward"), saves=(out,))
    fp32 = bool(s.option("attention_softmax_in_fp32", True))
    if not fp32:
        return softmax(tape, scores)
    wide = cast(tape, scores, "fp32")
    masked = _masked(ctx, wide, through_view=wide is scores)
    del wide, scores
    probabilities = softmax(tape, masked)
    narrow = cast(tape, probabilities, dtype, "attention probabilities")
    del masked, probabilities
    return narrow


def _masked(ctx: Context, x: Value, *, through_view: bool) -> Value:
    """``attention_scores.masked_fill_(mask, -10000.0)``. TE joins the masks anew in each layer (softmax.py).

    ``through_view``: scores that no cast has copied are a view of the product's result. Autograd then puts the gradient
    into one of the whole (AsStridedBackward), and runs masked_fill's backward on a copy of a slice of another
    (CopySlices in torch ``csrc/autograd/functions/tensor.cpp``).
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    mask = tape.new(shape[-2:], "bool", "attention mask") if uses_te(ctx.setting) else None

    def fill(grad: Storage) -> list[Storage | None]:
        if not through_view:
            return [tape.new(shape, dtype, "masked_fill backward")]
        whole = tape.new(shape, dtype, "CopySlices result")
        working = [tape.new(shape, dtype, f"CopySlices {what}") for what in ("slice", "masked_fill backward")]
        del working
        return [whole]

    filled = tape.record(Value(x.storage, shape, dtype), (x,), fill, saves=(mask,))
    if not through_view:
        return filled
    return operator(tape, Value(x.storage, shape, dtype), filled, (shape, dtype, "as_strided backward"))


def has_fused_softmax(s: Setting, heads: int) -> bool:
    """``FusedScaleMaskSoftmax.is_kernel_available``, Megatron's or TE's, which does not ask for the option."""
    if s.compute == "fp32" or (s.batch * heads) % 4:
        return False
    if uses_te(s):
        return 16 < s.sequence < 16384 and s.sequence % 8 == 0
    return bool(s.option("masked_softmax_fusion", True)) and 16 < s.sequence <= 4096 and s.sequence % 4 == 0


def _repeat(tape: Tape, x: Value, width: int) -> Value:
    """``repeat_interleave`` of grouped keys or values."""
    return operator(tape, tape.value((x.shape[0], width), x.dtype, "repeat_interleave"), x, "sum")
