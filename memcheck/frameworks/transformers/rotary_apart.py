"""Rotations of two halves apart: ``cat(first * cos - second * sin, second * cos + first * sin)``."""

from __future__ import annotations

from memcheck.autograd.tensor import Storage, Tape, Value, promote


def rotate_chunks(tape: Tape, x: Value, stream: str) -> Value:
    """GPT-OSS: ``cat(first * cos - second * sin, second * cos + first * sin)``; also DeepSeek V3's, on even and odd."""
    return _rotate_apart(tape, x, stream, split=True)


def rotate_pairs(tape: Tape, x: Value, stream: str) -> Value:
    """DeepSeek V3's apply_rotary_pos_emb_interleave: as ``rotate_chunks``, on strided slices."""
    return _rotate_apart(tape, x, stream, split=False)


def _rotate_apart(tape: Tape, x: Value, stream: str, *, split: bool) -> Value:
    shape, dtype = x.shape, x.dtype
    half = (*shape[:-1], shape[-1] // 2)
    wide = promote(dtype, stream)
    wants = x.origin is not None
    parts = []
    for name in ("first * cos - second * sin", "second * cos + first * sin"):
        a = tape.new(half, wide, "mul")
        b = tape.new(half, wide, "mul")
        parts.append(tape.new(half, wide, name))
        del a, b
    out = tape.value(shape, wide, "rotary embedding")
    parts.clear()

    def run(grad: Storage) -> list[Storage | None]:
        a = tape.new(half, wide, "mul backward")
        b = tape.new(half, wide, "mul backward")
        negated = tape.new(half, wide, "neg backward")
        c = tape.new(half, wide, "mul backward")
        del negated
        if wide != dtype:
            a, b, c = (tape.new(half, dtype, "to backward") for _ in range(3))
        second = tape.new(half, dtype, "add gradients") if tape.subclass else b
        del b, c
        d = tape.new(half, wide, "mul backward")
        if wide != dtype:
            d = tape.new(half, dtype, "to backward")
        first = tape.new(half, dtype, "add gradients") if tape.subclass else a
        del a, d
        if split:
            total = tape.new(shape, dtype, "split backward")
            del first, second
            return [total if wants else None]
        padded = tape.new(shape, dtype, "slice backward")
        del first
        other = tape.new(shape, dtype, "slice backward")
        del second
        total = tape.new(shape, dtype, "add gradients") if tape.subclass else padded
        del padded, other
        return [total if wants else None]

    return tape.record(out, (x,), run)
