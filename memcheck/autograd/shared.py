"""Tensors that several units read: an encoder's output, position biases, autocast's copies of shared weights."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd.tensor import Leaf, Parameter, Storage, Tape, Value

Backward = Callable[[Storage], "list[Storage | None]"]


class Gathered(Leaf):
    """What several units share: each adds its gradient in place to one that is counted elsewhere."""

    __slots__ = ()

    @property
    def grad(self) -> Storage | None:
        """None that counts here."""
        return None

    @grad.setter
    def grad(self, value: Storage | None) -> None:
        """Drop the gradient: it is added in place to a tensor that is counted elsewhere."""


def shared(tape: Tape, shape: tuple[int, ...], dtype: str, *, wants: bool, starts: bool) -> Value:
    """A tensor whose bytes are counted elsewhere. ``wants``: a gradient, which ``starts`` in this unit, or is added to
    what is there.
    """
    leaf = (Leaf() if starts else Gathered()) if wants else None
    return Value(tape.new((0,), dtype, "shared"), shape, dtype, leaf)


def shared_copy(weight: Parameter, dtype: str, cast_back: Backward) -> Backward:
    """The backward function of a copy that several layers read: gradients of all wait in its node's buffer for the
    first layer's, which backward reaches last, and are added in place; one cast makes the weight's gradient of them.
    """
    if not weight.reused:
        weight.awaits, weight.grad = dtype, not weight.fresh

        def run(grad: Storage) -> list[Storage | None]:
            found = cast_back(grad)
            weight.waiting = None
            return found

        return run

    def wait(grad: Storage) -> list[Storage | None]:
        if not weight.lent:
            weight.waiting = grad
        return [None]

    return wait
