"""How an operator is stated: what it saves for its backward and what that allocates, as data.

``operator`` attaches the common backward: temporaries that live until the gradients exist, and one gradient for each
input that wants one. A backward that frees a tensor between two allocations is a function (``Tape.record``).
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.autograd.tensor import SavedWeight, Storage, Tape, Value

New = tuple[tuple[int, ...], str, str]
"""A tensor that a backward allocates: shape, dtype, label."""
Formula = tuple["list[New | None]", "Sequence[New]", "Sequence[New]", bool, bool, object]
"""Gradients, temporaries before and after them, whether they are made in reverse, whether the first one goes on as a
view, and attributes of a Function's ctx.
"""
Gradient = New | str | None
"""A tensor that becomes the gradient of an input. A ``str`` is the label of one of the input's shape and dtype."""
GRAD_UNCHANGED: New = ((), "", "passed on")
"""The input's gradient is that of the result itself, and no new tensor is made."""


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
    """Attach the backward of an operator to its result ``out``, and return ``out``.

    ``gradients``: one for each input, or the same for all; an input that wants none gets none. ``saves``: values and
    storages that the graph keeps. ``temporaries`` are made before the gradients and ``later`` after them; both die when
    all exist. ``reverse``: the gradient of the last input is made first. ``viewed``: that of the first input goes on as
    a view, so that no other gradient is added to it in place (torch/csrc/autograd/input_buffer.cpp,
    can_accumulate_inplace). ``attributes``: of a Function's ctx, which live as long as the graph.
    ``validated``, ``saves_first``: as in :meth:`Tape.record`.
    """
    if isinstance(inputs, Value):
        inputs = (inputs,)
    per_input = gradients if isinstance(gradients, list) else [gradients] * len(inputs)
    made: list[New | None] = []
    if tape.grad_enabled:  # a loop: this runs for every operator of a replay
        for value, gradient in zip(inputs, per_input):  # noqa: B905 - a list has one for each input
            if value.origin is None:
                made.append(None)
            else:
                made.append((value.shape, value.dtype, gradient) if isinstance(gradient, str) else gradient)
    saved = [kept.storage if isinstance(kept, Value) else kept for kept in saves] if saves else ()
    formula = made, temporaries, later, reverse, viewed, attributes
    if validated or saves_first:
        return tape.record(out, inputs, formula, saves=saved, validated=validated, saves_first=saves_first)
    return tape.record(out, inputs, formula, saves=saved)


def factors(a: Value, b: Value) -> tuple[Value | None, Value | None]:
    """Return what the backward of ``a * b`` needs: each factor, if the other one needs a gradient; else None."""
    return (a if b.origin is not None else None, b if a.origin is not None else None)


def evaluate(tape: Tape, formula: Formula, grad: Storage) -> list[Storage | None]:
    """Run the backward of an operator: allocate its temporaries and gradients, and return a gradient per input."""
    made, temporaries, later, reverse, viewed, _ = formula
    component = tape.component
    temporary_storages = [Storage(tape, *tensor, component) for tensor in temporaries] if temporaries else []
    gradients: list[Storage | None] = []
    for gradient in made[::-1] if reverse else made:
        if gradient is None or gradient is GRAD_UNCHANGED:
            gradients.append(gradient and grad)
        else:
            shape, dtype, label = gradient
            gradients.append(Storage(tape, shape, dtype, label, component))
    if later:
        temporary_storages += [Storage(tape, *tensor, component) for tensor in later]
    del temporary_storages
    if reverse:
        gradients.reverse()
    if viewed and gradients[0] is not None:
        gradients[0].holders += 1
    return gradients
