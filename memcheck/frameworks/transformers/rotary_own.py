"""Rotary embeddings in forms that few families have: GPT-J, ERNIE, ModernBERT and their kin.

Rotations of two halves apart: ``cat(first * cos - second * sin, second * cos + first * sin)``.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import rotate_half
from memcheck.autograd.operator import cast
from memcheck.autograd.tensor import Storage, Tape, Value, promote
from memcheck.frameworks.transformers.rotary import layer_tables, partial
from memcheck.models.module_types import PositionTable
from memcheck.models.types import Attention


def rotate_chunks(tape: Tape, x: Value, stream: str) -> Value:
    """Rotate the two halves of each head by themselves (GPT-OSS): ``cat(first * cos - second * sin, second * cos +
    first * sin)``.
    """
    return _rotate_apart(tape, x, stream, split=True)


def rotate_pairs(tape: Tape, x: Value, stream: str) -> Value:
    """Rotate even and odd elements of each head (DeepSeek V3's apply_rotary_pos_emb_interleave)."""
    return _rotate_apart(tape, x, stream, split=False)


def _rotate_apart(tape: Tape, x: Value, stream: str, *, split: bool) -> Value:
    """Rotate two halves of ``x``, [batch, heads, sequence, head_dim], one expression for each, and concatenate them.

    ``stream``: dtype of cos and sin. ``split``: ``chunk`` makes the halves, whose backward joins their gradients in one
    tensor; else strided slices do, whose backward pads each gradient with zeros to x's shape.
    """
    shape, dtype = x.shape, x.dtype
    half = (*shape[:-1], shape[-1] // 2)
    promoted_dtype = promote(dtype, stream)
    needs_grad = x.needs_grad
    parts = []
    # each expression allocates two products and their sum
    for name in ("first * cos - second * sin", "second * cos + first * sin"):
        with_cos = tape.new(half, promoted_dtype, "mul")
        with_sin = tape.new(half, promoted_dtype, "mul")
        parts.append(tape.new(half, promoted_dtype, name))
        del with_cos, with_sin
    out = tape.value(shape, promoted_dtype, "rotary embedding")
    parts.clear()

    def rotary_backward(grad: Storage) -> list[Storage | None]:
        """Allocate the gradients of both halves, in the order of autograd, and return the gradient of ``x``."""
        first_by_sin = tape.new(half, promoted_dtype, "mul backward")
        second_by_cos = tape.new(half, promoted_dtype, "mul backward")
        negated = tape.new(half, promoted_dtype, "neg backward")
        second_by_sin = tape.new(half, promoted_dtype, "mul backward")
        del negated
        if promoted_dtype != dtype:
            first_by_sin, second_by_cos, second_by_sin = (tape.new(half, dtype, "to backward") for _ in range(3))
        second = tape.new(half, dtype, "add gradients") if tape.dtensor_gradients else second_by_cos
        del second_by_cos, second_by_sin
        first_by_cos = tape.new(half, promoted_dtype, "mul backward")
        if promoted_dtype != dtype:
            first_by_cos = tape.new(half, dtype, "to backward")
        first = tape.new(half, dtype, "add gradients") if tape.dtensor_gradients else first_by_sin
        del first_by_sin, first_by_cos
        if split:
            total = tape.new(shape, dtype, "split backward")
            del first, second
            return [total if needs_grad else None]
        padded = tape.new(shape, dtype, "slice backward")
        del first
        other = tape.new(shape, dtype, "slice backward")
        del second
        total = tape.new(shape, dtype, "add gradients") if tape.dtensor_gradients else padded
        del padded, other
        return [total if needs_grad else None]

    return tape.record(out, (x,), rotary_backward)


def rotate_copies(tape: Tape, x: Value) -> Value:
    """Rotate as ModernBERT does: ``(q.float() * cos) + (rotate_half(q.float()) * sin)``; each fp32 copy is a temporary.

    ``x``: [batch, heads, sequence, head_dim]. The result is fp32. Source: modeling_modernbert.py.
    """
    shape, dtype = x.shape, x.dtype
    half = (*shape[:-1], shape[-1] // 2)
    needs_grad, is_fp32 = x.needs_grad, dtype == "fp32"
    copied = None if is_fp32 else tape.new(shape, "fp32", "to")
    with_cos = tape.new(shape, "fp32", "q * cos")
    copied = None if is_fp32 else tape.new(shape, "fp32", "to")
    negated = tape.new(half, "fp32", "neg")
    rotated_half = tape.new(shape, "fp32", "rotate half")
    del negated, copied
    with_sin = tape.new(shape, "fp32", "rotate half * sin")
    del rotated_half
    out = tape.value(shape, "fp32", "rotary embedding")
    del with_cos, with_sin

    def rotary_backward(grad: Storage) -> list[Storage | None]:
        """Allocate the fp32 gradients of both products, sum them, and return the gradient of ``x``."""
        through_sin = tape.new(shape, "fp32", "mul backward")
        halves = tape.new(half, "fp32", "neg backward")
        padded = tape.new(shape, "fp32", "slice backward")
        del halves
        other_padded = tape.new(shape, "fp32", "slice backward")  # added in place to the first one
        del through_sin, other_padded
        if not is_fp32:
            padded = tape.new(shape, dtype, "to backward")
        through_cos = tape.new(shape, "fp32", "mul backward")
        if not is_fp32:
            through_cos = tape.new(shape, dtype, "to backward")
        del padded
        return [through_cos if needs_grad else None]

    return tape.record(out, (x,), rotary_backward)


def rotate_otherwise(ctx: Context, attention: Attention, q: Value, k: Value, stream: str) -> tuple[Value, Value]:
    """Rotate q, then k, [batch, heads, sequence, head_dim], in a form that few families have. ``stream``: dtype of the
    tables.
    """
    tape, form = ctx.tape, attention.rotation.form
    if form == "chunks":
        return rotate_chunks(tape, q, stream), rotate_chunks(tape, k, stream)
    if form == "half-fp32":  # OLMo's tables are fp32 in any case, and both results are cast back after the rotations
        tables = ctx.rotary_tables
        table_dtype = tables[0].dtype if tables else "fp32"
        rotated_q, rotated_k = rotate_half(tape, q, table_dtype, tables), rotate_half(tape, k, table_dtype, tables)
        return cast(tape, rotated_q, q.dtype), cast(tape, rotated_k, k.dtype)
    if form == "pairs-fp32":
        fp32_q, fp32_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
        rotated_q, rotated_k = rotate_half(tape, fp32_q, stream), rotate_half(tape, fp32_k, stream)
        return cast(tape, rotated_q, q.dtype), cast(tape, rotated_k, k.dtype)
    if form == "pairs-wide":
        return _wide_pairs(ctx, attention, q, k)
    if form == "pairs-each":  # GPT-J casts the tables to the keys' dtype
        ctx.attention_locals += _position_tables(ctx, attention, k.dtype)
        rotated_q = partial(ctx, attention, q, k.dtype, layer_tables(ctx, attention, k.dtype))
        return rotated_q, partial(ctx, attention, k, k.dtype, layer_tables(ctx, attention, k.dtype))
    rotated_q, rotated_k = rotate_copies(tape, q), rotate_copies(tape, k)  # ModernBERT
    return cast(tape, rotated_q, q.dtype), cast(tape, rotated_k, k.dtype)


def _wide_pairs(ctx: Context, attention: Attention, q: Value, k: Value) -> tuple[Value, Value]:
    """Rotate as ERNIE does: ``q.float() * cos + rotate_half(q).float() * sin``, cast back afterwards.

    The layer repeats the model's tables in their dtype, or in the dtype to which FSDP2 has cast them.
    """
    tape = ctx.tape
    dtype = ctx.rotary_tables[0].dtype if ctx.rotary_tables else "fp32"
    tables = tuple(tape.new((ctx.sequence, attention.rotary_dim), dtype, "repeated rotary table") for _ in range(2))
    rotated_q = rotate_half(tape, q, "fp32", tables)
    rotated_k = rotate_half(tape, k, "fp32", tables)
    return cast(tape, rotated_q, q.dtype), cast(tape, rotated_k, k.dtype)


def _position_tables(ctx: Context, attention: Attention, dtype: str) -> list[Value]:
    """Make the tables of GPT-J's layer: the repeated buffer, the repeated position ids, and ``sincos`` of the
    positions.

    They are [positions, rotary_dim] or [sequence, rotary_dim]. Source: modeling_gptj.py.
    """
    new, rows_shape = ctx.tape.value, (ctx.sequence, attention.rotary_dim)
    buffer_positions = attention.extension.positions if isinstance(attention.extension, PositionTable) else 0
    tables = [
        new((buffer_positions, attention.rotary_dim), "fp32", "embed_positions"),
        new(rows_shape, "int64", "position ids"),
    ]
    gathered = new(rows_shape, "fp32", "sincos")
    return [*tables, gathered if dtype == "fp32" else new(rows_shape, dtype, "sincos")]
