"""Rotations by tables that each layer makes, which its backward keeps, or of fp32 copies of queries and keys."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast
from memcheck.autograd.rotary import rotate_half
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers.rotary import layer_tables, partial
from memcheck.frameworks.transformers.rotary_apart import rotate_chunks
from memcheck.frameworks.transformers.rotary_copies import rotate_copies
from memcheck.models.attention_types import PositionTable
from memcheck.models.types import Attention


def rotate_otherwise(ctx: Context, a: Attention, q: Value, k: Value, stream: str) -> tuple[Value, Value]:
    """Rotate q, then k, in one of these forms. ``stream``: dtype of the model's tables."""
    tape, form = ctx.tape, a.rotary_form
    if form == "chunks":
        return rotate_chunks(tape, q, stream), rotate_chunks(tape, k, stream)
    if form == "half-fp32":  # OLMo's tables are fp32 in any case, and both results are cast back after the rotations
        tables = ctx.tables
        wide = tables[0].dtype if tables else "fp32"
        turned_q, turned_k = rotate_half(tape, q, wide, tables), rotate_half(tape, k, wide, tables)
        return cast(tape, turned_q, q.dtype), cast(tape, turned_k, k.dtype)
    if form == "pairs-fp32":
        wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
        turned_q, turned_k = rotate_half(tape, wide_q, stream), rotate_half(tape, wide_k, stream)
        return cast(tape, turned_q, q.dtype), cast(tape, turned_k, k.dtype)
    if form == "pairs-wide":
        return _wide_pairs(ctx, a, q, k)
    if form == "pairs-each":  # GPT-J casts the tables to the keys' dtype
        ctx.named += _position_tables(ctx, a, k.dtype)
        turned_q = partial(ctx, a, q, k.dtype, layer_tables(ctx, a, k.dtype))
        return turned_q, partial(ctx, a, k, k.dtype, layer_tables(ctx, a, k.dtype))
    turned_q, turned_k = rotate_copies(tape, q), rotate_copies(tape, k)  # ModernBERT
    return cast(tape, turned_q, q.dtype), cast(tape, turned_k, k.dtype)


def _wide_pairs(ctx: Context, a: Attention, q: Value, k: Value) -> tuple[Value, Value]:
    """Rotate as ERNIE does: ``q.float() * cos + rotate_half(q).float() * sin``, cast back afterwards.

    The layer repeats the model's tables in their dtype, or in the dtype to which FSDP2 has cast them.
    """
    tape = ctx.tape
    dtype = ctx.tables[0].dtype if ctx.tables else "fp32"
    tables = tuple(tape.new((ctx.sequence, a.rotary_dim), dtype, "repeated rotary table") for _ in range(2))
    turned_q = rotate_half(tape, q, "fp32", tables)
    turned_k = rotate_half(tape, k, "fp32", tables)
    return cast(tape, turned_q, q.dtype), cast(tape, turned_k, k.dtype)


def _position_tables(ctx: Context, a: Attention, dtype: str) -> list[Value]:
    """modeling_gptj.py: the repeated buffer, the repeated position ids, and ``sincos`` of the positions."""
    new, rows = ctx.tape.value, (ctx.sequence, a.rotary_dim)
    held = a.own.positions if isinstance(a.own, PositionTable) else 0
    found = [new((held, a.rotary_dim), "fp32", "embed_positions"), new(rows, "int64", "position ids")]
    gathered = new(rows, "fp32", "sincos")
    return [*found, gathered if dtype == "fp32" else new(rows, dtype, "sincos")]
