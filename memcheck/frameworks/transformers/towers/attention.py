"""Bidirectional attention over the rows of each picture, as the modeling files of towers write it."""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.eager import eager
from memcheck.autograd.elementwise import cast, cat, copy
from memcheck.autograd.indexing import gradient_copied, head_view, repeat_kv, slices
from memcheck.autograd.matrix import linear
from memcheck.autograd.modules import matrix, normalise
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.rotary import rotate_complex, rotate_half
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.edge.modules import import_module
from memcheck.frameworks.transformers.towers.tiles import widened_tables
from memcheck.models.vision import TowerAttention

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_ELSEWHERE = {
    "packed-one": "radio:packed_one",
    "packed-tables": "muse_glimmer:packed_tables",
    "sam": "sam:sam_attention",
}
"""Forms that one family alone has -> ``module:function``."""
WIDEST_FLASH = 256
"""Channels of a head up to which the flash kernel runs."""


def tower_attention(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Attention of a tower, by the form of its module. x: [rows, channels]."""
    if a.kind in _ELSEWHERE:
        module, function = _ELSEWHERE[a.kind].split(":")
        form: Callable[[Context, TowerAttention, Value], Value] = getattr(
            import_module("memcheck.frameworks.transformers.towers." + module), function
        )
        return form(ctx, a, x)
    return _FORMS[a.kind](ctx, a, x)


def _packed(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Qwen's towers: one matrix for q, k and v, rotated in fp32, and a kernel for each picture or window.

    modeling_qwen2_5_vl.py, Qwen2_5_VLVisionAttention.forward. ``unbind`` stacks the three gradients, and the permuted
    stack is copied for the matrix. Without flash-attention the rows are split by ``cu_seqlens`` and put together again.
    """
    tape, rows, heads, d = ctx.tape, ctx.tokens, a.heads, a.head_dim
    first = a.tensors[0]
    qkv = linear(tape, x, ctx.weights(first, a.bias), first.name)
    del x
    shape = (rows, heads, d)
    q, k, v = tape.views(head_view(tape, qkv, qkv.shape), shape, shape, shape)
    del qkv
    if a.query_norm is not None and a.key_norm is not None:
        q = normalise(ctx, a.query_norm, q, a.query_norm.name)
        k = normalise(ctx, a.key_norm, k, a.key_norm.name)
    return rotated_and_attended(ctx, a, q, k, v)


def _packed_apart(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Qwen2.5-Omni: as :func:`_packed`, with a matrix each for q, k and v (Qwen2_5OmniVisionAttention.forward)."""
    q, k, v = projections(ctx, a, x)
    del x
    return rotated_and_attended(ctx, a, q, k, v)


def _packed_part(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """MiniMax M3: a matrix each for q, k and v, and the front of each head rotated in the dtype of the tower's norm.

    modeling_minimax_m3_vl.py, apply_rotary_pos_emb_vision: the rest of each head is put after the rotated part again.
    """
    tape, shape = ctx.tape, (ctx.tokens, a.heads, a.head_dim)
    q, k, v = projections(ctx, a, x)
    del x
    front, rest = (*shape[:2], a.rotary_dim), (*shape[:2], a.head_dim - a.rotary_dim)
    stream = ctx.setting.params
    unrotated = q, k
    parts = [slices(tape, each, front, rest) for each in unrotated]
    del q, k
    for part in parts:
        part[0] = rotate_half(tape, part[0], stream)
    joined = []
    for turned, passed in parts:
        wide = cast(tape, passed, turned.dtype) if passed.dtype != turned.dtype else passed  # torch.cat promotes
        joined.append(cat(tape, (turned, wide), shape, "cat rotary"))
    del turned, passed, wide
    parts.clear()
    q, k = joined
    joined.clear()
    del unrotated
    return in_pictures(ctx, a, q, k, v)


def _packed_plain(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """MiniCPM-V: a matrix each for q, k and v of all pictures' rows, without rotations."""
    q, k, v = projections(ctx, a, x)
    del x
    return in_pictures(ctx, a, q, k, v)


def projections(ctx: Context, a: TowerAttention, x: Value) -> list[Value]:
    """Queries, keys and values [rows, heads, head_dim] of all pictures, from a matrix each."""
    shape = (ctx.tokens, a.heads, a.head_dim)
    matrices = [t for t in a.tensors if t.linear]
    return [linear(ctx.tape, x, ctx.weights(t, a.bias), t.name).view(*shape) for t in matrices[:3]]


def rotated_and_attended(ctx: Context, a: TowerAttention, q: Value, k: Value, v: Value) -> Value:
    """q and k rotated on fp32 copies, and the kernel over each picture's rows. All: [rows, heads, head_dim]."""
    tape, dtype = ctx.tape, q.dtype
    wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    del q, k
    tables = widened_tables(ctx, a.head_dim)
    turned_q, turned_k = rotate_half(tape, wide_q, "fp32", tables), rotate_half(tape, wide_k, "fp32", tables)
    del tables
    q = cast(tape, turned_q, dtype)
    del turned_q
    k = cast(tape, turned_k, dtype)
    del turned_k, wide_q, wide_k
    return in_pictures(ctx, a, q, k, v)


def in_pictures(ctx: Context, a: TowerAttention, q: Value, k: Value, v: Value) -> Value:
    """The kernel over each picture's rows, or each window's, and the output's matrix."""
    tape, rows, heads, d = ctx.tape, ctx.tokens, a.heads, a.head_dim
    if ctx.setting.attention in ("flash", "flex"):
        out = attend(ctx, q, k, v, 1)
    else:
        q, k, v = (tape.views(t, t.shape)[0] for t in (q, k, v))  # torch.split: gradients are put together again
        pieces = max(ctx.setting.pictures, -(-rows // a.window) if a.window else 1)  # a window ends with its picture
        if ctx.setting.attention == "eager" and ctx.setting.picture_rows and not a.window:
            return output_of(ctx, a, unequal(ctx, q, k, v, wide=a.softmax_fp32))
        out = attend(ctx, q, k, v, pieces, wide=a.softmax_fp32)
        out = cat(tape, (out,), (rows, heads, d), "cat pictures")
    return output_of(ctx, a, out)


def output_of(ctx: Context, a: TowerAttention, out: Value) -> Value:
    """The last matrix, of all pictures' rows [rows, heads, head_dim]."""
    last = [t for t in a.tensors if t.linear][-1]
    biased = any(t.name == last.name.removesuffix("weight") + "bias" for t in a.tensors)
    out = out.view(ctx.tokens, a.heads * a.head_dim)
    return linear(ctx.tape, out, ctx.weights(last, biased), last.name)


def _separate(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """SigLIP, CLIP, InternViT: three projections, and one kernel over all tiles."""
    return _projected(ctx, a, x)


def _copied(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Ovis 2: patches that lie apart in memory stay so through sums, and a product without a bias copies its rows."""
    return _projected(ctx, a, x, copied=True)


def _masked(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Idefics 3: a padding mask, so that the memory-efficient kernel runs, and each layer keeps it as that takes it."""
    return _projected(ctx, a, x, masked=True)


def _masked_apart(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Phi-4: under a padding mask, and what is added to patches that lie apart in memory has gradients that do."""
    out = _masked(ctx, a, x)
    del x
    return gradient_copied(ctx.tape, out, adapted=ctx.setting.adapter is not None)


def _additive(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Llama 3.2 Vision: the tiles of a picture in one sequence, under an additive mask that the stem has made."""
    return _projected(ctx, a, x, one=ctx.tape.autocast or ctx.setting.params, apart=True)


def _pixtral(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Pixtral: rotated, one sequence of all pictures under one mask that is additive already."""
    return _projected(ctx, a, x, rotation="half", one=ctx.setting.params)


def _complex(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Llama 4: fp32 copies read as complex numbers."""
    return _projected(ctx, a, x, rotation="complex")


def _axial(ctx: Context, a: TowerAttention, x: Value) -> Value:
    """Gemma 4: normed q, k and v, rows and columns rotated apart, and a padding mask; projections may be clamped.

    modeling_gemma4.py, Gemma4VisionAttention.forward and apply_multidimensional_rope: each head is split in two, each
    half rotated, and both put together.
    """
    tape, rows, heads, d = ctx.tape, ctx.tokens, a.heads, a.head_dim
    queries, keys, values, last = (t for t in a.tensors if t.linear)
    q = matrix(ctx, a, x, queries).view(rows, heads, d)
    q = _rotated_apart(ctx, normalise(ctx, a.query_norm, q, "self_attn.q_norm"))
    k = matrix(ctx, a, x, keys).view(rows, heads, d)
    k = _rotated_apart(ctx, normalise(ctx, a.key_norm, k, "self_attn.k_norm"))
    v = rms_norm_pieces(tape, matrix(ctx, a, x, values).view(rows, heads, d), None)
    del x
    out = attend(ctx, q, k, v, max(1, ctx.setting.pictures), masked=True).view(rows, heads * d)
    del q, k, v
    return matrix(ctx, a, out, last)


def _rotated_apart(ctx: Context, x: Value) -> Value:
    tape, shape = ctx.tape, x.shape
    half = (*shape[:-1], shape[-1] // 2)
    first, second = tape.views(x, half, half)
    turned = rotate_half(tape, first, first.dtype), rotate_half(tape, second, second.dtype)
    return cat(tape, turned, shape, "cat rotary")


def _projected(
    ctx: Context,
    a: TowerAttention,
    x: Value,
    *,
    masked: bool = False,
    rotation: str = "",
    one: str = "",
    apart: bool = False,
    copied: bool = False,
) -> Value:
    tape, rows, heads, d = ctx.tape, ctx.tokens, a.heads, a.head_dim
    matrices = [t for t in a.tensors if t.linear]
    q, k, v = (
        linear(tape, copy(tape, x, "contiguous") if copied else x, ctx.weights(t, a.bias), t.name).view(rows, heads, d)
        for t in matrices[:3]
    )
    del x
    if rotation == "half":
        turned = rotate_half(tape, q, q.dtype), rotate_half(tape, k, k.dtype)
        q, k = turned
        del turned
    elif rotation == "complex":
        q, k = rotate_complex(tape, q, k)
    pieces = 1 if one and not apart else max(1, ctx.setting.pictures)
    out = attend(ctx, q, k, v, pieces, masked=masked, one=one, wide=a.softmax_fp32).view(rows, heads * d)
    biased = any(t.name == matrices[3].name.removesuffix("weight") + "bias" for t in a.tensors)
    return linear(tape, out, ctx.weights(matrices[3], biased), matrices[3].name)


def attend(  # noqa: PLR0913 - the switches of one call
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
        out = eager(tape, q, k, v, steps, mask_dtype=ctx.setting.params, fp32_softmax=wide, narrows=wide)
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


def unequal(ctx: Context, q: Value, k: Value, v: Value, *, wide: bool = True) -> Value:
    """Eager attention over pictures of rows of their own, one after the other: ``torch.split`` by ``cu_seqlens``, and
    the outputs put together. q, k and v: [rows, heads, head_dim]. ``wide``: as :func:`attend` has it.
    """
    tape, each = ctx.tape, ctx.setting.picture_rows
    (_, heads, d), shape = q.shape, (q.shape[0], q.shape[1], q.shape[2])
    parts = [tape.views(t, *[(1, t.shape[1], rows, d) for rows in each]) for t in (q, k, v)]
    outs = []
    for one in zip(*parts, strict=True):
        a, b, c = one if not tape.autocast else tuple(cast(tape, t, tape.autocast) for t in one)
        if b.shape[1] != heads:
            b, c = repeat_kv(tape, b, heads), repeat_kv(tape, c, heads)
        out = eager(tape, a, b, c, ("scale",), mask_dtype=ctx.setting.params, fp32_softmax=wide, narrows=wide)
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
    "qwen": _packed,
    "qwen-separate": _packed_apart,
    "packed-part": _packed_part,
    "packed-plain": _packed_plain,
    "separate": _separate,
    "copied": _copied,
    "masked": _masked,
    "masked-apart": _masked_apart,
    "additive": _additive,
    "pixtral": _pixtral,
    "complex": _complex,
    "axial": _axial,
}
