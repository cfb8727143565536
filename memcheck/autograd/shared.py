"""Tensors that several units read, and their gradients: an encoder's output, position biases, autocast's copies."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd.tensor import Leaf, Parameter, Storage, Tape, Value

Backward = Callable[[Storage], "list[Storage | None]"]


class Gathered(Leaf):
    """A tensor that several units read, whose gradient is counted with another unit: adding to it is in place."""

    __slots__ = ()

    @property
    def grad(self) -> Storage | None:
        """None that counts here."""
        return None

    @grad.setter
    def grad(self, value: Storage | None) -> None:
        """Drop the gradient: it is added in place to a tensor that is counted elsewhere."""


def shared(tape: Tape, shape: tuple[int, ...], dtype: str, *, needs_grad: bool, starts: bool) -> Value:
    """Return a tensor that several units read, and whose bytes are counted elsewhere.

    ``starts``: backward reaches this unit first, which allocates the gradient; other units add to it in place.
    """
    leaf = (Leaf() if starts else Gathered()) if needs_grad else None
    return Value(tape.new((0,), dtype, "shared"), shape, dtype, leaf)


def shared_copy(weight: Parameter, dtype: str, cast_back: Backward) -> Backward:
    """Return the backward function of autocast's copy of a weight that several layers read.

    The gradients of all layers are summed in place in the copy's node. The first layer is the last that backward
    reaches: there one cast turns the sum into the weight's gradient. ``cast_back``: that cast.
    """
    if not weight.shared_with_earlier:
        weight.cast_gradient_dtype, weight.has_grad = dtype, not weight.first_micro_batch

        def run(grad: Storage) -> list[Storage | None]:
            gradients = cast_back(grad)
            weight.cast_gradient = None
            return gradients

        return run

    def wait(grad: Storage) -> list[Storage | None]:
        if not weight.shared_with_later:
            weight.cast_gradient = grad
        return [None]

    return wait
