"""How an operator is stated: what it saves for its backward and what that allocates, as data.

``operator`` attaches the common backward: temporaries that live until the gradients exist, and one gradient for each
input that wants one. A backward that frees a tensor between two allocations is a function (``Tape.record``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memcheck.autograd.checkpoint import with_ctx_attributes
from memcheck.autograd.tensor import SavedWeight, Storage, Tape, Value

New = tuple[tuple[int, ...], str, str]
"""A tensor that a backward allocates: shape, dtype, label."""
Gradient = New | str | None
"""A tensor that becomes the gradient of an input. A ``str`` is the label of one of the input's shape and dtype."""
PASSED: New = ((), "", "passed on")
"""The gradient of the result itself, in place of a new tensor."""


def operator(  # noqa: PLR0913 - what one operator may say of itself
    tape: Tape,
    out: Value,
    inputs: Value | tuple[Value, ...],
    gradients: Gradient | list[Gradient],
    *,
    saves: Sequence[Value | Storage | SavedWeight | None] = (),
    temporaries: Sequence[New] = (),
    later: Sequence[New] = (),
    reverse: bool = False,
    viewed: bool = False,
    validated: bool = False,
    saves_first: bool = False,
    attributes: object = None,
) -> Value:
    """``out`` with the backward of the operator that made it.

    ``gradients``: one for each input, or the same for all; an input that wants none gets none. ``saves``: values and
    storages that the graph keeps. ``temporaries`` are made before the gradients and ``later`` after them; both die when
    all exist. ``reverse``: the gradient of the last input is made first. ``viewed``: that of the first input goes on as
    a view, so that no other gradient is added to it in place (torch/csrc/autograd/input_buffer.cpp,
    can_accumulate_inplace). ``attributes``: of a Function's ctx, which live as long as the graph.
    ``validated``, ``saves_first``: as in :meth:`Tape.record`.
    """
    if isinstance(inputs, Value):
        inputs = (inputs,)
    origins = [v.origin for v in inputs]
    if not tape.grad_enabled or origins.count(None) == len(origins):
        return tape.record(out, inputs, _never, validated=validated, saves_first=saves_first)
    each = gradients if isinstance(gradients, list) else [gradients] * len(inputs)
    made = [
        None if v.origin is None else (v.shape, v.dtype, g) if isinstance(g, str) else g
        for v, g in zip(inputs, each, strict=True)
    ]
    saved = [each.storage if isinstance(each, Value) else each for each in saves]
    run = with_ctx_attributes(_formula(tape, made, (temporaries, later), reverse, viewed), attributes)
    return tape.record(out, inputs, run, saves=saved, validated=validated, saves_first=saves_first)


def factors(a: Value, b: Value) -> tuple[Value | None, Value | None]:
    """What a product keeps: each factor of which the other's gradient is computed."""
    return (a if b.origin is not None else None, b if a.origin is not None else None)


def _formula(
    tape: Tape, made: list[New | None], temporaries: tuple[Sequence[New], Sequence[New]], reverse: bool, viewed: bool
) -> Callable[[Storage], list[Storage | None]]:
    first, last = temporaries

    def run(grad: Storage) -> list[Storage | None]:
        held = [tape.new(*each) for each in first]
        found = [
            None if g is None else grad if g is PASSED else tape.new(*g) for g in (made[::-1] if reverse else made)
        ]
        held += [tape.new(*each) for each in last]
        del held
        if reverse:
            found.reverse()
        if viewed and found[0] is not None:
            found[0].holders += 1
        return found

    return run


def _never(grad: Storage) -> list[Storage | None]:
    """The backward of an operator none of whose inputs wants a gradient: the engine does not reach it."""
    raise AssertionError(grad)
