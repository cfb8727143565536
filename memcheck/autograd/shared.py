"""Tensors that several units read, and that are no weights: an encoder's output, position biases."""

from __future__ import annotations

from memcheck.autograd.tensor import Leaf, Storage, Tape, Value


class Gathered(Leaf):
    """What several units share: each adds its gradient in place to one that is counted elsewhere."""

    __slots__ = ()

    @property
    def grad(self) -> Storage | None:
        """None that counts here."""
        return None

    @grad.setter
    def grad(self, value: Storage | None) -> None:
        """It is added elsewhere, and dies."""


def shared(tape: Tape, shape: tuple[int, ...], dtype: str, *, wants: bool, starts: bool) -> Value:
    """A tensor whose bytes are counted elsewhere. ``wants``: a gradient, which ``starts`` in this unit, or is added to
    what is there.
    """
    leaf = (Leaf() if starts else Gathered()) if wants else None
    return Value(tape.new((0,), dtype, "shared"), shape, dtype, leaf)
