"""Rotations of queries and keys by tables of cosines and sines, as transformers' modeling files write them."""

from __future__ import annotations

from memcheck.autograd.elementwise import cast
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value, promote

Pair = tuple[Value, Value]


def rotate_half(tape: Tape, x: Value, stream: str, tables: tuple[Storage, ...] = (), *, holds: bool = False) -> Value:
    """Apply the rotary embedding, x * cos + rotated halves * sin, to queries or keys.

    ``x``: [batch, heads, sequence, rotated dim]; every temporary has its shape. ``stream``: the dtype of cos and sin.
    ``tables``: cos and sin where the graph saves them because the layer made its own. ``holds``: a variable refers to
    the rotated halves until the sum exists. Source: transformers' apply_rotary_pos_emb.
    """
    shape, dtype = x.shape, x.dtype
    half = (*shape[:-1], shape[-1] // 2)
    wide = promote(dtype, stream)
    needs_grad = x.origin is not None
    with_cos = tape.value(shape, wide, "q * cos")
    negated = tape.value(half, dtype, "neg")
    rotated = tape.value(shape, dtype, "rotate half")
    del negated
    with_sin = tape.value(shape, wide, "rotate half * sin")
    held = rotated if holds else None
    del rotated
    out = tape.value(shape, wide, "rotary embedding")
    del with_cos, with_sin, held

    def run(grad: Storage) -> list[Storage | None]:
        """Return the gradient of x: that through sin, rotated back half by half, plus that through cos."""
        through_sin = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_sin = tape.new(shape, dtype, "to backward")
        halves = tape.new(half, dtype, "neg backward")
        first = tape.new(shape, dtype, "slice backward")
        del halves
        second = tape.new(shape, dtype, "slice backward")
        del through_sin
        summed = tape.new(shape, dtype, "add gradients") if tape.dtensor_gradients else first
        del first, second
        through_cos = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_cos = tape.new(shape, dtype, "to backward")
        total = tape.new(shape, dtype, "add gradients") if tape.dtensor_gradients else through_cos
        del summed, through_cos
        return [total if needs_grad else None]

    return tape.record(out, (x,), run, saves=tables)


def rotate_complex(tape: Tape, q: Value, k: Value, rows: Storage | None = None) -> Pair:
    """Apply the rotary embedding with complex numbers, as DeepSeek V2, Llama 4 and torchtitan do.

    fp32 copies of queries and keys are viewed as complex numbers, multiplied by the table and cast back. ``rows``: rows
    of the table that the graph saves because the layer picked its own. Each backward makes their conjugates.
    """
    wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    rotated_q, rotated_k = _times_complex(tape, wide_q, rows), _times_complex(tape, wide_k, rows)
    return cast(tape, rotated_q, q.dtype), cast(tape, rotated_k, k.dtype)


def _times_complex(tape: Tape, wide: Value, rows: Storage | None) -> Value:
    """Multiply by the complex table; backward clones the conjugates of its rows."""
    shape = wide.shape
    rotated = tape.value(shape, "fp32", "x * freqs_cis")
    conjugates = rows.shape if rows is not None else None
    return operator(
        tape,
        rotated,
        wide,
        (shape, "fp32", "mul backward"),
        saves=(rows,),
        temporaries=[(conjugates or shape, "fp32", "clone")],
    )
