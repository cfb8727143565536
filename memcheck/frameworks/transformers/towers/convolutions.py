"""Convolutions after layers: what they keep in addition to what a product would."""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Storage, Value
from memcheck.models.types import ParameterTensor


def kept_input(ctx: Context, x: Value, out: Value, *, trained: bool) -> Value:
    """A convolution keeps its input also where its weights are frozen: one formula has both gradients
    (torch tools/autograd/derivatives.yaml, ``convolution``).
    """
    if trained or x.origin is None:
        return out
    return operator(ctx.tape, Value(out.storage, out.shape, out.dtype), out, PASSED, saves=(x,))


def convolution(ctx: Context, x: Value, kernel: ParameterTensor, rows: int) -> Value:
    """A convolution without a bias of rows [pixels, channels] to ``rows`` rows: keeps its input whatever is trained."""
    tape = ctx.tape
    p = ctx.parameter(kernel.name.removesuffix(".weight"), kernel.shape)
    x = cast(tape, x, tape.autocast) if tape.autocast else x
    weight = cast(tape, tape.parameter(p), tape.autocast) if tape.autocast else tape.parameter(p)
    shape, dtype = x.shape, x.dtype
    out = tape.value((rows, kernel.shape[0]), dtype, kernel.name)
    wants, learns, of_weight = x.origin is not None, p.requires_grad, (kernel.shape, weight.dtype)

    def run(grad: Storage) -> list[Storage | None]:
        passed = tape.new(shape, dtype, kernel.name + " dX") if wants else None
        return [passed, tape.new(*of_weight, kernel.name + " dW") if learns else None]

    return tape.record(out, (x, weight), run, saves=(x.storage,))


def laid_out(ctx: Context, x: Value, rows: int = 0) -> Value:
    """``permute`` and ``reshape``, or a pad, to ``rows`` rows: a copy, and one of its gradient."""
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    return operator(tape, tape.value((rows or shape[0], *shape[1:]), dtype, "laid out"), x, "laid out backward")
