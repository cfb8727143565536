"""Scores, softmax and product of softmax attention, by the kernel that runs.

FlashAttention over padded rows packs the real tokens for the kernel, and puts them back after it (transformers 5.23
modeling_flash_attention_utils.py, ``_flash_attention_forward``, ``_upad_input``, ``_pad_input``). Every row is as long
as the longest, so that each copy is as large as the rows.
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.kernels import MASK_ALIGNMENT, flash
from memcheck.autograd.operator import cast, copy, index, operator, repeat_kv
from memcheck.autograd.tensor import Storage, Value, ceil_div, round_up
from memcheck.frameworks.transformers.kernel_choice import (
    additive_mask,
    copied_operands,
    kernel_of,
    needs_mask,
    repeats_kv,
    shares_mask,
    turns_in_place,
)
from memcheck.frameworks.transformers.rotary import concatenates
from memcheck.models.module_types import BloomAttention, FalconAttention, WhisperAttention
from memcheck.models.types import Attention


def attend(ctx: Context, attention: Attention, q: Value, k: Value, v: Value) -> Value:
    """Compute softmax(q k^T) v with the kernel that runs on CUDA, and return what the output projection reads.

    ``q``: [batch, heads, sequence, head_dim]; ``k`` and ``v`` have ``kv_heads`` heads. Returns [batch, heads, sequence,
    v_head_dim], contiguous for the projection.
    """
    if ctx.setting.ulysses:
        from memcheck.frameworks.transformers.ulysses import attend_to_heads

        return attend_to_heads(ctx, attention, q, k, v, attend)
    tape = ctx.tape
    kernel = kernel_of(ctx, attention)
    copied = copied_operands(ctx, attention, q.shape[1])
    if repeats_kv(ctx, attention):
        if isinstance(attention, FalconAttention) and tape.autocast:  # Falcon's products repeat what autocast has cast
            k, v = cast(tape, k, tape.autocast), cast(tape, v, tape.autocast)
        k, v = repeat_kv(tape, k, q.shape[1]), repeat_kv(tape, v, q.shape[1])
    if kernel == "eager":
        from memcheck.frameworks.transformers.eager import attend_eagerly

        if isinstance(attention, BloomAttention) and any(copied):  # reshaped by hand: variables until the residual sum
            q, k, v = (copy(tape, t, "contiguous") for t in (q, k, v))
            ctx.attention_locals += [q, k, v]
            copied = (False, False, False)
        return attend_eagerly(ctx, attention, q, k, v, copied)
    if kernel == "math":
        from memcheck.frameworks.transformers.math_kernel import broadcasting, math_kernel

        return (
            broadcasting(ctx, attention, q, k, v)
            if attention.fused_qkv == "index"
            else math_kernel(ctx, attention, q, k, v)
        )
    kernel_arguments = k, v  # repeated, they are variables of sdpa_attention_forward while the kernel runs
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    mask = None
    if kernel == "efficient" and needs_mask(attention, ctx.setting.sequence, ctx.setting.style):
        mask = _kernel_mask(ctx, attention, v.dtype)
    if attention.row_masks == "padding" and ctx.setting.attention == "flash":
        return flash_of_real_tokens(ctx, q, k, v)
    ring = ctx.setting.context_parallel
    out = kernels.flash(tape, q, k, v, v.shape[-1], label=f"{kernel} attention", extra=mask, ring=ring)
    del kernel_arguments
    if attention.sinks:
        from memcheck.frameworks.transformers.sinks import kernel_with_sinks

        out = kernel_with_sinks(ctx, attention, out)
    # flash writes its output in q's strides: a q that was built contiguous (cat of rotated and plain parts) makes
    # transpose(1, 2) non-contiguous, so o_proj's input is one more copy; the memory-efficient kernel's is not.
    joined = concatenates(attention) and attention.rotation.form != "pairs-each" and not turns_in_place(ctx)
    q_is_contiguous = joined or isinstance(attention, WhisperAttention)
    if kernel == "flash" and q_is_contiguous:
        out = copy(tape, out, "contiguous")
    return out


def _kernel_mask(ctx: Context, attention: Attention, dtype: str) -> Storage | None:
    """Return the mask that the memory-efficient kernel keeps as ``attn_bias``, or None if it is the model's own.

    ``convert_boolean_attn_mask`` makes a boolean mask additive. ``pad_bias`` pads rows to a multiple of 8. autocast
    casts an additive mask. Source: aten/src/ATen/native/transformers/attention.cpp.
    """
    if attention.cross:
        return _cross_attention_mask(ctx, dtype, additive=attention.row_masks != "padding")
    if shares_mask(attention, ctx.setting):
        return None
    mask = additive_mask(ctx, attention, dtype)
    if ctx.sequence % MASK_ALIGNMENT:
        padded_keys = round_up(ctx.sequence, MASK_ALIGNMENT)
        mask_heads = ceil_div(attention.heads, ctx.tp) if attention.alibi else 1
        mask = ctx.tape.new((ctx.batch, mask_heads, ctx.sequence, padded_keys), dtype, "padded attention mask")
    return mask


def _cross_attention_mask(ctx: Context, dtype: str, *, additive: bool) -> Storage | None:
    """Return the mask of cross-attention that the kernel keeps, [batch, 1, sequence, encoded], or None if the model
    holds it.

    The mask over picture rows is ``additive`` and in the model's dtype. The mask over padded words is boolean.
    """
    rows = ctx.setting.encoder_length
    padded_rows = round_up(rows, MASK_ALIGNMENT)
    if additive and ctx.setting.autocast_dtype is None and padded_rows == rows:
        return None
    return ctx.tape.new((ctx.batch, 1, ctx.sequence, padded_rows), dtype, "mask of encoded rows")


def flash_of_real_tokens(ctx: Context, q: Value, k: Value, v: Value) -> Value:
    """Run FlashAttention on the tokens that are not padding. It keeps unpadded copies of q, k and v.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]. The projection reads a padded copy of the output.
    """
    tape = ctx.tape
    real_tokens = tape.new((q.shape[0] * q.shape[2],), "int64", "real tokens")
    k, v, q = (index(tape, x, real_tokens, x.shape, "unpadded") for x in (k, v, q))
    out = flash(tape, q, k, v, v.shape[-1])
    return operator(
        tape, tape.value(out.shape, out.dtype, "padded attention"), out, "padded backward", saves=(real_tokens,)
    )
