"""Convolutions behind layers: what they keep beside what a product would."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Storage, Value


def kept_input(ctx: Context, x: Value, out: Value, *, trained: bool) -> Value:
    """A convolution keeps its input also where its weights are frozen: one formula has both gradients
    (torch tools/autograd/derivatives.yaml, ``convolution``).
    """
    if trained or x.origin is None:
        return out

    def run(grad: Storage, kept: Storage | None = x.storage) -> list[Storage | None]:
        return [grad]

    return ctx.tape.record(Value(out.storage, out.shape, out.dtype), (out,), run)
