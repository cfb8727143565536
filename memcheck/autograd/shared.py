"""Tensors that several units read, and their gradients: an encoder's output, position biases, autocast's copies."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd.tensor import Leaf, Parameter, Storage, Tape, Value

Backward = Callable[[Storage], "list[Storage | None]"]


class Gathered(Leaf):
    """A tensor that several units read; each adds its gradient in place to a sum that is counted elsewhere."""

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
    if not weight.reused:
        weight.awaits, weight.grad = dtype, not weight.fresh

        def run(grad: Storage) -> list[Storage | None]:
            gradients = cast_back(grad)
            weight.waiting = None
            return gradients

        return run

    def wait(grad: Storage) -> list[Storage | None]:
        if not weight.lent:
            weight.waiting = grad
        return [None]

    return wait


class Waiting(Leaf):
    """A slice of a tensor that several units read: its gradient waits for those of the units before them.

    Slices of a larger gradient are views, which hold all of it, and to which nothing is added in place
    (torch/csrc/autograd/input_buffer.cpp, ``can_accumulate_inplace``).
    """

    __slots__ = ("_tape", "arriving", "buffer", "dtype", "shape")

    def __init__(self, tape: Tape, shape: tuple[int, ...], dtype: str, arriving: tuple[int, ...] | None) -> None:
        self._tape, self.shape, self.dtype = tape, shape, dtype
        self.arriving = arriving
        """Shape of the gradient that later units have left for this one; None: none have."""
        self.buffer: Storage | None = None
        tape.waiting.append(self)

    def arrive(self) -> int:
        """Count the bytes of the gradient that later units have left."""
        if self.arriving is None:
            return 0
        self.buffer = self._tape.new(self.arriving, self.dtype, "waiting gradient")
        return self.buffer.bytes

    def left(self) -> int:
        """Bytes that wait for units further down."""
        return 0 if self.buffer is None else self.buffer.bytes

    def take(self) -> Storage | None:
        """Return the waiting gradient, and give up the reference to it."""
        gradient, self.buffer = self.buffer, None
        return gradient

    def _is_whole(self, grad: Storage) -> bool:
        return grad.shape == self.shape

    @property
    def grad(self) -> Storage | None:
        """None that is counted as the unit's own."""
        return None

    @grad.setter
    def grad(self, value: Storage | None) -> None:
        """Add a gradient to the waiting one: in place if either has the full shape, else into a new tensor."""
        old = self.buffer
        if value is None or (old is not None and self._is_whole(old)):
            return
        if old is not None and not self._is_whole(value):
            value = self._tape.new(self.shape, self.dtype, "sum of waiting gradients")
        self.buffer = value


def held_until_backward(tape: Tape, x: Value, kept: list[Storage]) -> Value:
    """Return a unit's input, and keep ``kept`` alive until the unit's backward is over."""
    out = Value(x.storage, x.shape, x.dtype)

    def backward(grad: Storage) -> list[Storage | None]:
        kept.clear()
        return [grad]

    return tape.record(out, (x,), backward)


def with_gradient_of(tape: Tape, y: Value, handed: Value, arriving: tuple[int, ...]) -> Value:
    """Return a unit's output ``y``; its backward first sends on the gradient of ``handed`` that later units have left.

    ``arriving``: the shape of the gradient that later units have left.
    """
    if handed.origin is None:
        return y
    leaf = Waiting(tape, handed.shape, handed.dtype, arriving)
    out = Value(y.storage, y.shape, y.dtype)
    return tape.record(out, (y, handed), lambda grad: [grad, leaf.take()])
