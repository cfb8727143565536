"""Bidirectional attention over the rows of each picture, as the modeling files of towers write it."""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.eager import eager
from memcheck.autograd.elementwise import cast, cat, copy
from memcheck.autograd.indexing import head_view, repeat_kv
from memcheck.autograd.modules import normalise
from memcheck.autograd.rotary import rotate_complex, rotate_half
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.edge.modules import import_module
from memcheck.families.towers.forward_parts import fp32_rotary_tables, linear_layer
from memcheck.models.vision import TowerAttention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

WIDEST_FLASH = 256
"""Channels of a head up to which the flash kernel runs."""


def tower_attention(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Attention of a tower, by the form of its module. x: [rows, channels]."""
    if ":" in attention.kind:
        module, function = attention.kind.split(":")
        form: Callable[[Context, TowerAttention, Value], Value] = getattr(
            import_module("memcheck.families.towers." + module), function
        )
        return form(ctx, attention, x)
    return _FORMS[attention.kind](ctx, attention, x)


def _packed(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Qwen's towers: one matrix for q, k and v, rotated in fp32, and a kernel for each picture or window.

    modeling_qwen2_5_vl.py, Qwen2_5_VLVisionAttention.forward. ``unbind`` stacks the three gradients, and the permuted
    stack is copied for the matrix. Without flash-attention the rows are split by ``cu_seqlens`` and put together again.
    """
    tape, rows, heads, head_dim = ctx.tape, ctx.tokens, attention.heads, attention.head_dim
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
    """Qwen2.5-Omni: as :func:`_packed`, with a matrix each for q, k and v (Qwen2_5OmniVisionAttention.forward)."""
    q, k, v = projections(ctx, attention, x)
    del x
    return rotated_and_attended(ctx, attention, q, k, v)


def projections(ctx: Context, attention: TowerAttention, x: Value) -> list[Value]:
    """Queries, keys and values [rows, heads, head_dim] of all pictures, from a matrix each."""
    shape = (ctx.tokens, attention.heads, attention.head_dim)
    matrices = [t for t in attention.tensors if t.linear]
    return [linear_layer(ctx, x, t, bias=attention.bias).view(*shape) for t in matrices[:3]]


def rotated_and_attended(ctx: Context, attention: TowerAttention, q: Value, k: Value, v: Value) -> Value:
    """q and k rotated on fp32 copies, and the kernel over each picture's rows. All: [rows, heads, head_dim]."""
    tape, dtype = ctx.tape, q.dtype
    wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    del q, k
    tables = fp32_rotary_tables(ctx, attention.head_dim)
    turned_q, turned_k = rotate_half(tape, wide_q, "fp32", tables), rotate_half(tape, wide_k, "fp32", tables)
    del tables
    q = cast(tape, turned_q, dtype)
    del turned_q
    k = cast(tape, turned_k, dtype)
    del turned_k, wide_q, wide_k
    return attention_per_picture(ctx, attention, q, k, v)


def attention_per_picture(ctx: Context, attention: TowerAttention, q: Value, k: Value, v: Value) -> Value:
    """The kernel over each picture's rows, or each window's, and the output's matrix."""
    tape, rows, heads, head_dim = ctx.tape, ctx.tokens, attention.heads, attention.head_dim
    if ctx.setting.attention in ("flash", "flex"):
        out = attention_kernel(ctx, q, k, v, 1)
    else:
        q, k, v = (tape.views(t, t.shape)[0] for t in (q, k, v))  # torch.split: gradients are put together again
        pieces = max(
            ctx.setting.images, -(-rows // attention.window) if attention.window else 1
        )  # a window ends with its picture
        if ctx.setting.attention == "eager" and ctx.setting.rows_per_image and not attention.window:
            return output_projection(ctx, attention, eager_per_picture(ctx, q, k, v, wide=attention.softmax_fp32))
        out = attention_kernel(ctx, q, k, v, pieces, wide=attention.softmax_fp32)
        out = cat(tape, (out,), (rows, heads, head_dim), "cat pictures")
    return output_projection(ctx, attention, out)


def output_projection(ctx: Context, attention: TowerAttention, out: Value) -> Value:
    """The last matrix, of all pictures' rows [rows, heads, head_dim]."""
    last = [t for t in attention.tensors if t.linear][-1]
    biased = any(t.name == last.name.removesuffix("weight") + "bias" for t in attention.tensors)
    out = out.view(ctx.tokens, attention.heads * attention.head_dim)
    return linear_layer(ctx, out, last, bias=biased)


def _separate(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """SigLIP, CLIP, InternViT: three projections, and one kernel over all tiles."""
    return separate_attention(ctx, attention, x)


def masked_attention(ctx: Context, attention: TowerAttention, x: Value) -> Value:
    """Idefics 3: a padding mask, so that the memory-efficient kernel runs, and each layer keeps it as that takes it."""
    return separate_attention(ctx, attention, x, masked=True)


def separate_attention(
    ctx: Context,
    attention: TowerAttention,
    x: Value,
    *,
    masked: bool = False,
    rotation: str = "",
    one: str = "",
    apart: bool = False,
    copied: bool = False,
) -> Value:
    """Queries, keys and values from a matrix each, the kernel over each picture's rows, and the output's matrix.

    ``masked``: under a padding mask. ``rotation``: ``half`` | ``complex``. ``one``: dtype of an additive mask over all
    rows, which the stem has made; ``apart``: its pictures are sequences of their own. ``copied``: rows lie apart.
    """
    tape, rows, heads, head_dim = ctx.tape, ctx.tokens, attention.heads, attention.head_dim
    matrices = [t for t in attention.tensors if t.linear]
    q, k, v = (
        linear_layer(ctx, copy(tape, x, "contiguous") if copied else x, t, bias=attention.bias).view(
            rows, heads, head_dim
        )
        for t in matrices[:3]
    )
    del x
    if rotation == "half":
        turned = rotate_half(tape, q, q.dtype), rotate_half(tape, k, k.dtype)
        q, k = turned
        del turned
    elif rotation == "complex":
        q, k = rotate_complex(tape, q, k)
    pieces = 1 if one and not apart else max(1, ctx.setting.images)
    out = attention_kernel(ctx, q, k, v, pieces, masked=masked, one=one, wide=attention.softmax_fp32).view(
        rows, heads * head_dim
    )
    biased = any(t.name == matrices[3].name.removesuffix("weight") + "bias" for t in attention.tensors)
    return linear_layer(ctx, out, matrices[3], bias=biased)


def attention_kernel(  # noqa: PLR0913 - the switches of one call
    ctx: Context,
    q: Value,
    k: Value,
    v: Value,
    pieces: int,
    *,
    masked: bool = False,
    one: str = "",
    fused: bool = False,
    wide: bool = True,
) -> Value:
    """The kernel, over ``pieces`` equal pieces of the rows. q, k and v: [rows, heads, head_dim].

    ``masked``: under a padding mask; ``one``: dtype of an additive mask of all rows, which the stem has made;
    ``fused``: whatever attention is chosen; ``wide``: eager attention asks for its softmax in fp32.
    """
    tape = ctx.tape
    rows, heads, d = q.shape
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    each = -(-rows // pieces)
    if ctx.setting.attention == "eager" and not fused:
        # what a last one lacks counts as if it were there
        q, k, v = (Value(t.storage, (pieces, t.shape[1], each, d), t.dtype, t.origin) for t in (q, k, v))
        if k.shape[1] != heads:
            k, v = repeat_kv(tape, k, heads), repeat_kv(tape, v, heads)
        steps = ("scale", "add") if masked or one else ("scale",)
        out = eager(tape, q, k, v, steps, mask_dtype=ctx.setting.param_dtype, fp32_softmax=wide, narrows=wide)
        out = copy(tape, out, "contiguous")
        return Value(out.storage, (rows, heads, d), out.dtype, out.origin)
    flashes = ctx.setting.attention in ("flash", "flex") or not (masked or one)
    kernel = "flash" if flashes and q.dtype in ("bf16", "fp16") and d <= WIDEST_FLASH else "efficient"
    mask = None
    if masked and not flashes:
        aligned = -(-each // MASK_ALIGNMENT) * MASK_ALIGNMENT
        boolean = tape.new((pieces, 1, each, each), q.dtype, "attention mask")
        mask = tape.new((pieces, 1, each, aligned), q.dtype, "padded attention mask") if each != aligned else boolean
        del boolean
    elif one and not flashes:
        mask = _own_mask(tape, rows, one, q.dtype)
    q, k, v = (t.view(t.shape[1], rows, d) for t in (q, k, v))
    out = kernels.flash(tape, q, k, v, d, label=f"{kernel} attention", extra=mask)
    return out.view(rows, heads, d)


def eager_per_picture(ctx: Context, q: Value, k: Value, v: Value, *, wide: bool = True) -> Value:
    """Eager attention over pictures of rows of their own, one after the other: ``torch.split`` by ``cu_seqlens``, and
    the outputs put together. q, k and v: [rows, heads, head_dim]. ``wide``: as :func:`attention_kernel` has it.
    """
    tape, each = ctx.tape, ctx.setting.rows_per_image
    (_, heads, d), shape = q.shape, (q.shape[0], q.shape[1], q.shape[2])
    parts = [tape.views(t, *[(1, t.shape[1], rows, d) for rows in each]) for t in (q, k, v)]
    outs = []
    for one in zip(*parts, strict=True):
        a, b, c = one if not tape.autocast else tuple(cast(tape, t, tape.autocast) for t in one)
        if b.shape[1] != heads:
            b, c = repeat_kv(tape, b, heads), repeat_kv(tape, c, heads)
        out = eager(tape, a, b, c, ("scale",), mask_dtype=ctx.setting.param_dtype, fp32_softmax=wide, narrows=wide)
        outs.append(copy(tape, out, "contiguous"))
        del out, a, b, c, one
    return cat(tape, tuple(outs), shape, "cat pictures")


def _own_mask(tape: Tape, rows: int, made: str, dtype: str) -> Storage | None:
    """A layer's copy of the stem's mask [1, 1, rows, rows]: autocast narrows it every time, and the kernel pads it."""
    aligned = -(-rows // MASK_ALIGNMENT) * MASK_ALIGNMENT
    narrow = tape.new((1, 1, rows, rows), dtype, "attention mask") if made != dtype else None
    if rows == aligned:
        return narrow
    return tape.new((1, 1, rows, aligned), dtype, "padded attention mask")


_FORMS = {
    "masked": masked_attention,
    "packed": _packed,
    "packed-separate": _packed_separate,
    "separate": _separate,
}
