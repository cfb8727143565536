"""Tensors whose gradients lie in memory otherwise than the products that made them want these."""

from __future__ import annotations

from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import RESTING, Tape, Value


def gradient_copied(tape: Tape, x: Value, *, adapted: bool) -> Value:
    """The tensor itself, whose gradient lies in memory as another tensor does. The product that made it copies the
    gradient, once it has what it saved. ``adapted``: a view after an adapter's product copies it first.
    """
    shape, dtype = x.shape, x.dtype
    return operator(tape, Value(x.storage, shape, dtype), x, "contiguous gradient", saves=() if adapted else (RESTING,))


def head_view(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``x.view(b, s, heads, d).transpose(1, 2)`` whose gradient comes back head by head: copied for the view."""
    return operator(tape, Value(x.storage, shape, x.dtype), x, "contiguous gradient")


def repeat_kv(tape: Tape, x: Value, heads: int, *, copies: bool = False) -> Value:
    """``expand(...).reshape(...)``: a copy with as many heads as q; of a single head, a view with stride 0, unless it
    ``copies``.
    """
    shape = (x.shape[0], heads, x.shape[2], x.shape[3])
    small, dtype = x.shape, x.dtype
    out = Value(x.storage, shape, dtype) if small[1] == 1 and not copies else tape.value(shape, dtype, "repeat_kv")
    return operator(tape, out, x, "sum")
