"""Bidirectional attention over the rows of each picture, as the modeling files of towers write it."""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, cat, copy
from memcheck.autograd.matrix import linear
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.attention import head_view
from memcheck.frameworks.transformers.rotary import rotate_half
from memcheck.models.vision import TowerAttention

WIDEST_FLASH = 256
"""Channels of a head up to which the flash kernel runs."""


def tower_attention(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Whichever form the module has."""
    return _FORMS[a.kind](ctx, a, x)


def _packed(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Qwen's towers: one matrix for q, k and v, rotated in fp32, and a kernel for each picture or window.

    modeling_qwen2_5_vl.py, Qwen2_5_VLVisionAttention.forward. ``unbind`` stacks the three gradients, and the permuted
    stack is copied for the matrix. Without flash-attention the rows are split by ``cu_seqlens`` and put together again.
    """
    tape, (qkv_tensor, _, out_tensor, _) = ctx.tape, a.tensors
    rows, heads, d = ctx.tokens, a.heads, a.head_dim
    qkv = linear(tape, x, ctx.weights(qkv_tensor, a.bias), qkv_tensor.name)
    del x
    shape = (rows, heads, d)
    q, k, v = tape.views(head_view(tape, qkv, qkv.shape), shape, shape, shape)
    del qkv
    dtype = q.dtype
    wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    del q, k
    turned_q, turned_k = rotate_half(tape, wide_q, "fp32"), rotate_half(tape, wide_k, "fp32")
    q = cast(tape, turned_q, dtype)
    del turned_q
    k = cast(tape, turned_k, dtype)
    del turned_k, wide_q, wide_k
    if ctx.setting.attention in ("flash", "flex"):
        out = attend(ctx, q, k, v, 1)
    else:
        q, k, v = (tape.views(t, shape)[0] for t in (q, k, v))  # torch.split: gradients are put together again
        pieces = -(-rows // a.window) if a.window else ctx.setting.pictures
        out = attend(ctx, q, k, v, pieces)
        out = cat(tape, (out,), (rows, heads, d), "cat pictures")
    out = out.view(rows, heads * d)
    return linear(tape, out, ctx.weights(out_tensor, a.bias), out_tensor.name)


def attend(ctx: Context, q: Value, k: Value, v: Value, pieces: int) -> Value:
    """The kernel, over so many equal pieces of the rows. q, k and v: [rows, heads, head_dim]."""
    tape = ctx.tape
    rows, heads, d = q.shape
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    each = -(-rows // pieces)
    if ctx.setting.attention == "eager":
        grouped = (pieces, heads, each, d)  # what a last one lacks counts as if it were there
        q, k, v = (Value(t.storage, grouped, t.dtype, t.origin) for t in (q, k, v))
        out = kernels.eager(tape, q, k, v, ("scale",))
        out = copy(tape, out, "contiguous")
        return Value(out.storage, (rows, heads, d), out.dtype, out.origin)
    kernel = "flash" if q.dtype in ("bf16", "fp16") and d <= WIDEST_FLASH else "efficient"
    q, k, v = (t.view(heads, rows, d) for t in (q, k, v))
    out = kernels.flash(tape, q, k, v, d, label=f"{kernel} attention")
    return out.view(rows, heads, d)


_FORMS = {"qwen": _packed}
