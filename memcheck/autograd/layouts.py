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
