"""A rotation whose every product reads an fp32 copy of its own (modeling_modernbert.py, ``apply_rotary_pos_emb``)."""

from __future__ import annotations

from memcheck.autograd.tensor import Storage, Tape, Value


def rotate_copies(tape: Tape, x: Value) -> Value:
    """Rotate as ModernBERT does: ``(q.float() * cos) + (rotate_half(q.float()) * sin)``; each fp32 copy is a temporary.

    ``x``: [batch, heads, sequence, head_dim]. The result is fp32. Source: modeling_modernbert.py.
    """
    shape, dtype = x.shape, x.dtype
    half, needs_grad, is_fp32 = (*shape[:-1], shape[-1] // 2), x.origin is not None, dtype == "fp32"
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
        first = tape.new(shape, "fp32", "slice backward")
        del halves
        second = tape.new(shape, "fp32", "slice backward")
        del through_sin, second
        first = first if is_fp32 else tape.new(shape, dtype, "to backward")
        through_cos = tape.new(shape, "fp32", "mul backward")
        through_cos = through_cos if is_fp32 else tape.new(shape, dtype, "to backward")
        del first
        return [through_cos if needs_grad else None]

    return tape.record(out, (x,), rotary_backward)
