"""Rotations of two halves apart: ``cat(first * cos - second * sin, second * cos + first * sin)``."""

from __future__ import annotations

from memcheck.autograd.tensor import Storage, Tape, Value, promote


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
    needs_grad = x.origin is not None
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
