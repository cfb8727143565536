"""Rotations of queries and keys by tables of cosines and sines, as transformers' modeling files write them."""

from __future__ import annotations

from memcheck.autograd.elementwise import cast
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value, promote

Pair = tuple[Value, Value]


def rotate_half(tape: Tape, x: Value, stream: str, tables: tuple[Storage, ...] = (), *, holds: bool = False) -> Value:
    """Multiply by cos, the turned halves by sin, and add. ``tables``: kept when the layer made its own. ``holds``: the
    turned halves have a variable until the sum is there.
    """
    shape, dtype = x.shape, x.dtype
    half = (*shape[:-1], shape[-1] // 2)
    wide = promote(dtype, stream)
    wants = x.origin is not None
    with_cos = tape.value(shape, wide, "q * cos")
    negated = tape.value(half, dtype, "neg")
    turned = tape.value(shape, dtype, "rotate half")
    del negated
    with_sin = tape.value(shape, wide, "rotate half * sin")
    held = turned if holds else None
    del turned
    out = tape.value(shape, wide, "rotary embedding")
    del with_cos, with_sin, held

    def run(grad: Storage) -> list[Storage | None]:
        through_sin = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_sin = tape.new(shape, dtype, "to backward")
        halves = tape.new(half, dtype, "neg backward")
        first = tape.new(shape, dtype, "slice backward")
        del halves
        second = tape.new(shape, dtype, "slice backward")
        del through_sin
        summed = tape.new(shape, dtype, "add gradients") if tape.subclass else first
        del first, second
        through_cos = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_cos = tape.new(shape, dtype, "to backward")
        total = tape.new(shape, dtype, "add gradients") if tape.subclass else through_cos
        del summed, through_cos
        return [total if wants else None]

    return tape.record(out, (x,), run, saves=tables)


def rotate_complex(tape: Tape, q: Value, k: Value, rows: Storage | None = None) -> Pair:
    """DeepSeek V2, Llama 4, torchtitan: fp32 copies read as complex numbers, times the table, back to q's dtype.

    ``rows``: the table's rows, kept when the layer picked its own. Their conjugates are made for each backward.
    """
    wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    turned_q, turned_k = _times_complex(tape, wide_q, rows), _times_complex(tape, wide_k, rows)
    return cast(tape, turned_q, q.dtype), cast(tape, turned_k, k.dtype)


def _times_complex(tape: Tape, wide: Value, rows: Storage | None) -> Value:
    shape = wide.shape
    turned = tape.value(shape, "fp32", "x * freqs_cis")
    conjugates = rows.shape if rows is not None else None
    return operator(
        tape,
        turned,
        wide,
        (shape, "fp32", "mul backward"),
        saves=(rows,),
        temporaries=[(conjugates or shape, "fp32", "clone")],
    )
