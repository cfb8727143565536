"""Operators that pick, sort, group and lay out rows: what routing tokens to experts is made of.

Sources: torch tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp (index_backward,
gather_backward, value_selecting_reduction_backward): the gradient is scattered into a fresh tensor of zeros, in place
unless it is a tensor subclass.
"""

from __future__ import annotations

from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import RESTING, Storage, Tape, Value


def scattered(tape: Tape, shape: tuple[int, ...], dtype: str, label: str) -> Storage:
    """Zeros of ``shape`` into which a gradient is scattered."""
    zeros = tape.new(shape, dtype, label)
    return tape.new(shape, dtype, label) if tape.subclass else zeros


def index(tape: Tape, x: Value, indices: Storage, shape: tuple[int, ...], label: str = "index") -> Value:
    """``x[indices]`` along dim 0: keeps the indices."""
    out = tape.value(shape, x.dtype, label)
    x_shape, x_dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        return [scattered(tape, x_shape, x_dtype, label + " backward")]

    return tape.record(out, (x,), run, saves_first=True, saves=(indices,))


def topk(tape: Tape, x: Value, k: int) -> tuple[Value, Storage]:
    """``torch.topk(x, k)``: values and int64 indices; keeps the indices."""
    shape = (*x.shape[:-1], k)
    values = Value(tape.output("topk", shape, x.dtype, "topk values"), shape, x.dtype)
    indices = tape.output("topk", shape, "int64", "topk indices")
    x_shape, x_dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        return [scattered(tape, x_shape, x_dtype, "topk backward")]

    return tape.record(values, (x,), run, saves=(indices,)), indices


def gather(tape: Tape, x: Value, indices: Storage, label: str = "gather") -> Value:
    """``x.gather(1, indices)``: keeps the indices."""
    return index(tape, x, indices, indices.shape, label)


def grouped_mm(
    tape: Tape, x: Value, weight: Value, outputs: int, offsets: Storage, label: str, weight_shape: tuple[int, ...]
) -> Value:
    """``F.grouped_mm(x, weight, offs=offsets)``: groups of rows times matrices of their own; keeps both and offsets."""
    out = tape.value((x.shape[0], outputs), x.dtype, label)
    nx, nw = x.origin is not None, weight.origin is not None
    w_dtype = weight.dtype
    return operator(
        tape,
        out,
        (x, weight),
        [label + " dX", (weight_shape, w_dtype, label + " dW")],
        saves=(x if nw else None, weight if nx else None, offsets),
        reverse=True,
    )


def sum_groups(tape: Tape, x: Value, groups: int) -> Value:
    """``x.view(n, groups, ...).sum(1)``: keeps nothing; the view's backward makes the expanded gradient real.

    Autocast asks for a sum in fp32 (aten/src/ATen/autocast_mode.h, ``AT_FORALL_FP32_SET_OPT_DTYPE``).
    """
    shape = (x.shape[0] // groups, *x.shape[1:])
    out = tape.value(shape, "fp32" if tape.autocast else x.dtype, "sum over choices")
    return operator(tape, out, x, "expanded gradient")


def slices(tape: Tape, x: Value, *shapes: tuple[int, ...]) -> list[Value]:
    """Basic slices (``x[..., ::2]``): views whose backward pads each gradient with zeros to x's size."""
    parts = [Value(x.storage, s, x.dtype) for s in shapes]
    return [operator(tape, p, x, "slice backward") for p in parts]


def clamp(tape: Tape, x: Value, bounds: int) -> Value:
    """``x.clamp(...)`` with one or two bounds: keeps x; backward compares it with each of them."""
    out = tape.value(x.shape, x.dtype, "clamp")
    shape = x.shape
    return operator(
        tape, out, x, "clamp backward", saves=(x,), temporaries=[(shape, "bool", "clamp backward")] * bounds
    )


def gradient_copied(tape: Tape, x: Value, *, adapted: bool) -> Value:
    """The tensor itself, whose gradient lies in memory as another tensor does. The product that made it copies the
    gradient, once it has what it saved. ``adapted``: a view after an adapter's product copies it first.
    """
    shape, dtype = x.shape, x.dtype
    return operator(tape, Value(x.storage, shape, dtype), x, "contiguous gradient", saves=() if adapted else (RESTING,))


def head_view(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``x.view(b, s, heads, d).transpose(1, 2)`` whose gradient comes back head by head: copied for the view."""
    return operator(tape, Value(x.storage, shape, x.dtype), x, "contiguous gradient")


def repeat_kv(tape: Tape, x: Value, heads: int, *, copies: bool = False) -> Value:
    """``expand(...).reshape(...)``: a copy with as many heads as q; of a single head, a view with stride 0, unless it
    ``copies``.
    """
    shape = (x.shape[0], heads, x.shape[2], x.shape[3])
    small, dtype = x.shape, x.dtype
    out = Value(x.storage, shape, dtype) if small[1] == 1 and not copies else tape.value(shape, dtype, "repeat_kv")
    return operator(tape, out, x, "sum")
