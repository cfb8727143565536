"""Bidirectional attention over the rows of each picture, as the modeling files of towers write it."""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.eager import EagerSteps, eager
from memcheck.autograd.kernels import MASK_ALIGNMENT, rotate_complex, rotate_half
from memcheck.autograd.modules import normalise
from memcheck.autograd.operator import cast, cat, copy, head_view, repeat_kv
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div, round_up
from memcheck.edge.imports import import_module
from memcheck.families.towers.forward_parts import fp32_rotary_tables, linear_layer
from memcheck.models.vision import TowerAttention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

WIDEST_FLASH = 256
"""Channels of a head up to which the flash kernel runs."""


def tower_attention(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute the attention of a tower's layer in the form that ``attention.kind`` names. ``x``: [rows, channels]."""
    if ":" in attention.kind:
        module, function = attention.kind.split(":")
        form: Callable[[Context, TowerAttention, Value], Value] = getattr(
            import_module("memcheck.families.towers." + module), function
        )
        return form(ctx, attention, x)
    return _FORMS[attention.kind](ctx, attention, x)


def _packed(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute the attention of Qwen's towers: one matrix for q, k and v, a rotation in fp32, one kernel per picture or
    window.

    modeling_qwen2_5_vl.py, Qwen2_5_VLVisionAttention.forward. ``unbind`` stacks the three gradients, and the permuted
    stack is copied for the matrix. Without flash-attention the rows are split by ``cu_seqlens`` and put together again.
    ``x``: [patches, channels], as is the result.
    """
    tape, rows = ctx.tape, ctx.tokens
    heads, head_dim = attention.heads, attention.head_dim
    first = attention.tensors[0]
    qkv = linear_layer(ctx, x, first, bias=attention.bias)
    del x
    shape = (rows, heads, head_dim)
    q, k, v = tape.views(head_view(tape, qkv, qkv.shape), shape, shape, shape)
    del qkv
    if attention.query_norm is not None and attention.key_norm is not None:
        q = normalise(ctx, attention.query_norm, q, attention.query_norm.name)
        k = normalise(ctx, attention.key_norm, k, attention.key_norm.name)
    return rotated_and_attended(ctx, attention, q, k, v)


def _packed_separate(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute Qwen2.5-Omni's attention: as :func:`_packed`, with a matrix each for q, k and v.

    Qwen2_5OmniVisionAttention.forward.
    """
    q, k, v = projections(ctx, attention, x)
    del x
    return rotated_and_attended(ctx, attention, q, k, v)


def projections(ctx: Context, attention: TowerAttention, x: Value, *, copied: bool = False) -> list[Value]:
    """Compute queries, keys and values [rows, heads, head_dim] of all pictures, with a separate matrix for each.

    ``copied``: x is not contiguous, so that every product copies it.
    """
    shape = (ctx.tokens, attention.heads, attention.head_dim)
    matrices = [t for t in attention.tensors if t.linear]
    return [
        linear_layer(ctx, copy(ctx.tape, x, "contiguous") if copied else x, t, bias=attention.bias).view(*shape)
        for t in matrices[:3]
    ]


def rotated_and_attended(ctx: Context, attention: TowerAttention, q: Value, k: Value, v: Value) -> Value:
    """Rotate q and k on fp32 copies, and compute attention over each picture. All: [rows, heads, head_dim]."""
    tape, dtype = ctx.tape, q.dtype
    fp32_q, fp32_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    del q, k
    tables = fp32_rotary_tables(ctx, attention.head_dim)
    rotated_q, rotated_k = rotate_half(tape, fp32_q, "fp32", tables), rotate_half(tape, fp32_k, "fp32", tables)
    del tables
    q = cast(tape, rotated_q, dtype)
    del rotated_q
    k = cast(tape, rotated_k, dtype)
    del rotated_k, fp32_q, fp32_k
    return attention_per_picture(ctx, attention, q, k, v)


def attention_per_picture(ctx: Context, attention: TowerAttention, q: Value, k: Value, v: Value) -> Value:
    """Compute attention within each picture's rows, or each window's, and the output projection: [rows, channels]."""
    tape, rows = ctx.tape, ctx.tokens
    heads, head_dim = attention.heads, attention.head_dim
    if ctx.setting.attention in ("flash", "flex"):
        out = attention_kernel(ctx, attention, q, k, v, 1)
    else:
        q, k, v = (tape.views(t, t.shape)[0] for t in (q, k, v))  # torch.split, whose backward joins the gradients
        if ctx.setting.attention == "eager" and ctx.setting.rows_per_image and not attention.window:
            out = eager_per_picture(ctx, q, k, v, fp32_softmax=attention.softmax_fp32)
            return output_projection(ctx, attention, out)
        # a window ends with its picture
        windows = max(ctx.setting.images, ceil_div(rows, attention.window) if attention.window else 1)
        out = attention_kernel(ctx, attention, q, k, v, windows)
        out = cat(tape, (out,), (rows, heads, head_dim), "cat pictures")
    return output_projection(ctx, attention, out)


def output_projection(ctx: Context, attention: TowerAttention, out: Value) -> Value:
    """Compute the attention's output matrix on all pictures' rows [rows, heads, head_dim]."""
    last = [t for t in attention.tensors if t.linear][-1]
    biased = any(t.name == last.name.removesuffix("weight") + "bias" for t in attention.tensors)
    out = out.view(ctx.tokens, attention.heads * attention.head_dim)
    return linear_layer(ctx, out, last, bias=biased)


def _separate(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute the attention of SigLIP, CLIP and InternViT: three projections, and one kernel over all pictures."""
    return separate_attention(ctx, attention, x)


def masked_attention(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Compute Idefics 3's attention, which has a padding mask.

    The mask rules out the flash kernel; each layer keeps a padded copy for the memory-efficient one.
    """
    return separate_attention(ctx, attention, x, masked=True)


def separate_attention(
    ctx: Context,
    attention: TowerAttention,
    x: Value,
    *,
    masked: bool = False,
    rotation: str = "",
    mask_dtype: str = "",
    per_picture: bool = False,
    copied: bool = False,
) -> Value:
    """Compute attention with a matrix each for q, k and v, over each picture's rows, and the output projection.

    ``masked``: under a padding mask (Idefics 3). ``rotation``: ``half`` (Pixtral) | ``complex`` (Llama 4).
    ``mask_dtype``: of an additive mask over all rows that the stem has made (Pixtral); empty for none. ``per_picture``:
    even under that mask each picture is a sequence (Llama 3.2 Vision). ``copied``: x is not contiguous, so that every
    product copies it (Ovis 2).
    """
    tape = ctx.tape
    q, k, v = projections(ctx, attention, x, copied=copied)
    del x
    if rotation == "half":
        rotated = rotate_half(tape, q, q.dtype), rotate_half(tape, k, k.dtype)
        q, k = rotated
        del rotated
    elif rotation == "complex":
        q, k = rotate_complex(tape, q, k)
    sequences = 1 if mask_dtype and not per_picture else max(1, ctx.setting.images)
    out = attention_kernel(ctx, attention, q, k, v, sequences, masked=masked, mask_dtype=mask_dtype)
    return output_projection(ctx, attention, out)


def attention_kernel(
    ctx: Context,
    attention: TowerAttention,
    q: Value,
    k: Value,
    v: Value,
    sequences: int,
    *,
    masked: bool = False,
    mask_dtype: str = "",
) -> Value:
    """Compute attention over ``sequences`` equal parts of the rows. q, k, v and the result: [rows, heads, head_dim].

    ``masked``: under a padding mask. ``mask_dtype``: of an additive mask of all rows that the stem has made; empty for
    none.
    """
    if ctx.setting.attention == "eager":
        return _eager_kernel(ctx, attention, q, k, v, sequences, adds_mask=masked or bool(mask_dtype))
    return _fused_kernel(ctx, q, k, v, sequences, masked=masked, mask_dtype=mask_dtype)


def _eager_kernel(
    ctx: Context, attention: TowerAttention, q: Value, k: Value, v: Value, sequences: int, *, adds_mask: bool
) -> Value:
    """Compute eager attention over ``sequences`` parts of the rows, of which a last, shorter one counts as a full one.

    q, k, v and the result: [rows, heads, head_dim]. ``adds_mask``: a mask is added to the scores.
    """
    tape = ctx.tape
    rows, heads, head_dim = q.shape
    rows_per_sequence = ceil_div(rows, sequences)
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    q, k, v = (
        Value(t.storage, (sequences, t.shape[1], rows_per_sequence, head_dim), t.dtype, t.origin) for t in (q, k, v)
    )
    if k.shape[1] != heads:
        k, v = repeat_kv(tape, k, heads), repeat_kv(tape, v, heads)
    fp32 = attention.softmax_fp32
    steps = ("scale", "add") if adds_mask else ("scale",)
    out = eager(tape, q, k, v, EagerSteps(ctx.setting.param_dtype, steps, fp32_softmax=fp32, casts_probabilities=fp32))
    out = copy(tape, out, "contiguous")
    return Value(out.storage, (rows, heads, head_dim), out.dtype, out.origin)


def _fused_kernel(
    ctx: Context, q: Value, k: Value, v: Value, sequences: int, *, masked: bool, mask_dtype: str
) -> Value:
    """Compute attention by the flash kernel, or by the memory-efficient one where a mask or the dtype rules that out.

    q, k, v and the result: [rows, heads, head_dim]. ``masked``, ``mask_dtype``: as in :func:`attention_kernel`.
    """
    tape = ctx.tape
    rows, _, head_dim = q.shape
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    allows_flash = ctx.setting.attention in ("flash", "flex") or not (masked or mask_dtype)
    kernel = "flash" if allows_flash and q.dtype in ("bf16", "fp16") and head_dim <= WIDEST_FLASH else "efficient"
    mask = None
    if masked and not allows_flash:
        mask = _padding_mask(tape, sequences, ceil_div(rows, sequences), q.dtype)
    elif mask_dtype and not allows_flash:
        mask = _layer_mask(tape, rows, mask_dtype, q.dtype)
    q, k, v = (t.view(t.shape[1], rows, head_dim) for t in (q, k, v))
    out = kernels.flash(tape, q, k, v, head_dim, label=f"{kernel} attention", extra=mask)
    return out.view(rows, q.shape[0], head_dim)


def _padding_mask(tape: Tape, sequences: int, rows: int, dtype: str) -> Storage:
    """Allocate the layer's copy of the padding mask in ``dtype``: [sequences, 1, rows, rows].

    The memory-efficient kernel reads one with columns in multiples of eight; the copy is freed once it is padded.
    """
    mask = tape.new((sequences, 1, rows, rows), dtype, "attention mask")
    aligned = round_up(rows, MASK_ALIGNMENT)
    return mask if rows == aligned else tape.new((sequences, 1, rows, aligned), dtype, "padded attention mask")


def eager_per_picture(ctx: Context, q: Value, k: Value, v: Value, *, fp32_softmax: bool = True) -> Value:
    """Compute eager attention over pictures of unequal size, one after the other, and join the outputs.

    ``torch.split`` by ``cu_seqlens``. q, k and v: [rows, heads, head_dim]. ``fp32_softmax``: the softmax runs in fp32.
    """
    tape, rows_by_picture = ctx.tape, ctx.setting.rows_per_image
    (_, heads, head_dim), shape = q.shape, (q.shape[0], q.shape[1], q.shape[2])
    split_qkv = [tape.views(t, *[(1, t.shape[1], rows, head_dim) for rows in rows_by_picture]) for t in (q, k, v)]
    steps = EagerSteps(ctx.setting.param_dtype, ("scale",), fp32_softmax=fp32_softmax, casts_probabilities=fp32_softmax)
    outs = []
    for picture in zip(*split_qkv, strict=True):
        picture_q, picture_k, picture_v = (
            picture if not tape.autocast else tuple(cast(tape, t, tape.autocast) for t in picture)
        )
        if picture_k.shape[1] != heads:
            picture_k, picture_v = repeat_kv(tape, picture_k, heads), repeat_kv(tape, picture_v, heads)
        out = eager(tape, picture_q, picture_k, picture_v, steps)
        outs.append(copy(tape, out, "contiguous"))
        del out, picture_q, picture_k, picture_v, picture
    return cat(tape, tuple(outs), shape, "cat pictures")


def _layer_mask(tape: Tape, rows: int, mask_dtype: str, dtype: str) -> Storage | None:
    """Allocate a layer's copy of the stem's mask [1, 1, rows, rows]; None if it needs none.

    autocast casts the mask to ``dtype`` in every layer, and the memory-efficient kernel pads it to a multiple of eight
    columns.
    """
    aligned = round_up(rows, MASK_ALIGNMENT)
    cast_mask = tape.new((1, 1, rows, rows), dtype, "attention mask") if mask_dtype != dtype else None
    if rows == aligned:
        return cast_mask
    return tape.new((1, 1, rows, aligned), dtype, "padded attention mask")


_FORMS = {
    "masked": masked_attention,
    "packed": _packed,
    "packed-separate": _packed_separate,
    "separate": _separate,
}
