"""Operators that pick, sort, group and lay out rows: what routing tokens to experts is made of.

Sources: torch tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp (index_backward,
gather_backward, value_selecting_reduction_backward): the gradient is scattered into a fresh tensor of zeros, in place
unless it is a tensor subclass.
"""

from __future__ import annotations

from memcheck.autograd.operator import New, factors, operator
from memcheck.autograd.tensor import SAVED_WEIGHT, Storage, Tape, Value


def scattering(tape: Tape, x: Value, label: str) -> list[New]:
    """Return the temporaries of a backward that scatters a gradient into zeros of the size of ``x``.

    The scatter is in place, so that the zeros become the gradient. With DTensors it is not: the zeros are one more
    tensor.
    """
    return [(x.shape, x.dtype, label)] if tape.dtensor_gradients else []


def index(tape: Tape, x: Value, indices: Storage, shape: tuple[int, ...], label: str = "index") -> Value:
    """Compute ``x[indices]`` along dim 0: keeps the indices."""
    out, label = tape.value(shape, x.dtype, label), label + " backward"
    return operator(tape, out, x, label, saves=(indices,), temporaries=scattering(tape, x, label), saves_first=True)


def topk(tape: Tape, x: Value, k: int) -> tuple[Value, Storage]:
    """Return ``torch.topk(x, k)``: values and int64 indices; keeps the indices."""
    shape, label = (*x.shape[:-1], k), "topk backward"
    values = Value(tape.output("topk", shape, x.dtype, "topk values"), shape, x.dtype)
    indices = tape.output("topk", shape, "int64", "topk indices")
    zeros = scattering(tape, x, label)
    return operator(tape, values, x, label, saves=(indices,), temporaries=zeros), indices


def gather(tape: Tape, x: Value, indices: Storage, label: str = "gather") -> Value:
    """``x.gather(1, indices)``: keeps the indices."""
    return index(tape, x, indices, indices.shape, label)


def gather_last(tape: Tape, x: Value, indices: Storage, shape: tuple[int, ...], label: str = "gather") -> Value:
    """Compute ``x.gather(-1, indices)`` to ``shape``: keeps ``x`` and the indices."""
    out, zeros = tape.value(shape, x.dtype, label), scattering(tape, x, "gather backward")
    return operator(tape, out, x, "gather backward", saves=(x, indices), temporaries=zeros)


def grouped_mm(
    tape: Tape, x: Value, weight: Value, outputs: int, offsets: Storage, label: str, weight_shape: tuple[int, ...]
) -> Value:
    """Compute ``F.grouped_mm(x, weight, offs=offsets)``: groups of rows times matrices of their own; keeps both and
    offsets.
    """
    out = tape.value((x.shape[0], outputs), x.dtype, label)
    made, saves = (weight_shape, weight.dtype, label + " dW"), (*factors(x, weight), offsets)
    return operator(tape, out, (x, weight), [label + " dX", made], saves=saves, reverse=True)


def sum_groups(tape: Tape, x: Value, groups: int) -> Value:
    """Compute ``x.view(n, groups, ...).sum(1)``: keeps nothing; the view's backward makes the expanded gradient real.

    Autocast asks for a sum in fp32 (aten/src/ATen/autocast_mode.h, ``AT_FORALL_FP32_SET_OPT_DTYPE``).
    """
    shape = (x.shape[0] // groups, *x.shape[1:])
    out = tape.value(shape, "fp32" if tape.autocast else x.dtype, "sum over choices")
    return operator(tape, out, x, "expanded gradient")


def slices(tape: Tape, x: Value, *shapes: tuple[int, ...]) -> list[Value]:
    """Take basic slices of ``x`` (``x[..., ::2]``): views, whose backward pads each gradient with zeros to x's size."""
    parts = [Value(x.storage, shape, x.dtype) for shape in shapes]
    return [operator(tape, part, x, "slice backward") for part in parts]


def gradient_copied(tape: Tape, x: Value, *, adapted: bool) -> Value:
    """Return ``x`` itself, with a backward that copies its gradient because that is not contiguous (``.contiguous()``).

    ``adapted``: ``x`` comes out of an adapter, whose view copies the gradient before a checkpoint recomputes anything.
    Otherwise the matrix product copies it, after the recompute has made what the product saved.
    """
    out = Value(x.storage, x.shape, x.dtype)
    return operator(tape, out, x, "contiguous gradient", saves=() if adapted else (SAVED_WEIGHT,))


def head_view(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``x.view(b, s, heads, d).transpose(1, 2)`` whose gradient comes back head by head: copied for the view."""
    return operator(tape, Value(x.storage, shape, x.dtype), x, "contiguous gradient")


def repeat_kv(tape: Tape, x: Value, heads: int, *, copies: bool = False) -> Value:
    """Repeat keys or values to the number of query heads, as ``expand(...).reshape(...)``; backward sums over groups.

    The result is a copy. A single head is only expanded: a view with stride 0, unless the caller ``copies`` it.
    """
    shape = (x.shape[0], heads, x.shape[2], x.shape[3])
    is_view = x.shape[1] == 1 and not copies
    out = Value(x.storage, shape, x.dtype) if is_view else tape.value(shape, x.dtype, "repeat_kv")
    return operator(tape, out, x, "sum")
