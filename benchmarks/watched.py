"""Everything that the engine makes on its way to an answer: each tensor of a replay, each moment and size of a step.

A figure is a maximum of sums, in which most of what was added up does not show. Here it does: a tensor of another
shape, one that dies a line later, a moment that is not the highest, or a gradient that lives in none of these. Each
counts once, however often it is made, so that what is replayed twice, in another order or from a cache of another size,
is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

from memcheck.accounts.program import Evaluated
from memcheck.autograd.tensor import Storage, Tape, Value

Made = dict[str, set[tuple[object, ...]]]


@contextmanager
def watched() -> Iterator[Made]:
    """What is made inside: ``tensors``, views and edges with what lives beside them, ``steps``: moments and sizes."""
    tensors: set[tuple[object, ...]] = set()
    moments: set[tuple[object, ...]] = set()
    storage, value, record, evaluated = Storage.__init__, Value.__init__, Tape.record, Evaluated.__init__

    def new_storage(self: Storage, tape: Tape, shape: Any, dtype: str, label: str, component: str) -> None:
        storage(self, tape, shape, dtype, label, component)
        tensors.add((label, shape, dtype, component, tape.copies, tape.live))

    def new_value(self: Value, held: Storage | None, shape: Any, dtype: str, origin: Any = None) -> None:
        value(self, held, shape, dtype, origin)
        tensors.add((shape, dtype, -1 if held is None else held.numel, origin is None))

    def new_node(self: Tape, out: Value, inputs: tuple[Value, ...], run: Any, **how: Any) -> Value:
        flags = sorted(name for name, given in how.items() if given is True)
        tensors.add((out.shape, *[(each.shape, each.dtype, each.origin is None) for each in inputs], *flags))
        return record(self, out, inputs, run, **how)

    def new_step(self: Evaluated, program: Any, totals: Any, sizes: Any) -> None:
        evaluated(self, program, totals, sizes)
        moments.update((program.mark(number)[:2], total) for number, total in enumerate(totals))
        moments.update(tuple(some) for some in sizes)

    names = ((Storage, "__init__", new_storage), (Value, "__init__", new_value), (Tape, "record", new_node))
    patches: tuple[tuple[Any, str, Any], ...] = (*names, (Evaluated, "__init__", new_step))
    before = [getattr(owner, name) for owner, name, _ in patches]
    try:
        for owner, name, instead in patches:
            setattr(owner, name, instead)
        yield {"tensors": tensors, "steps": moments}
    finally:
        for (owner, name, _), instead in zip(patches, before, strict=True):
            setattr(owner, name, instead)


def digest(made: set[tuple[object, ...]]) -> str:
    """How many there are, and a number that any of them changes."""
    return f"{len(made)} {sum(crc32(repr(each).encode()) for each in made) % 2**32:08x}"
