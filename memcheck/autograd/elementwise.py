"""Casts, sums, products, activations, dropout: what autograd keeps of each.

Sources: torch tools/autograd/derivatives.yaml (torch 2.13) for what is saved; torch/csrc/autograd/FunctionsManual.cpp
for the temporaries of the backward formulas.
"""

from __future__ import annotations

from memcheck.autograd.operator import GRAD_UNCHANGED, operator
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value, promote
from memcheck.record import Record


class Elementwise(Record):
    """What autograd saves of an operator of one tensor, and the temporaries of its derivative."""

    saves: str
    """``input`` or ``result``."""
    temporaries: tuple[str, ...] = ()
    """Dtypes of the tensors of the input's shape that live until the gradient exists; empty: the input's."""


ELEMENTWISE = {
    "relu": Elementwise("result"),
    "tanh": Elementwise("result"),
    "sigmoid": Elementwise("result"),
    "softmax": Elementwise("result"),
    "log_softmax": Elementwise("result"),
    "exp": Elementwise("result"),
    "expm1": Elementwise("result", ("",)),  # grad * (result + 1)
    "sqrt": Elementwise("result", ("",)),  # grad / (2 * result)
    "rsqrt": Elementwise("result", ("", "")),  # -0.5 * grad * result.pow(3)
    "reciprocal": Elementwise("result", ("", "")),  # -grad * (result * result)
    "pow": Elementwise("input", ("", "")),  # grad * (n * x ** (n - 1)), of a number n > 1
    "erf": Elementwise("input", ("",) * 4),  # 2 / sqrt(pi) * exp(-(x.pow(2))) * grad
    "min": Elementwise("input", ("bool", "bool", "")),  # of a constant: two comparisons, and half of the gradient
    "clamp": Elementwise("input", ("bool", "bool")),
    "clamp to one bound": Elementwise("input", ("bool",)),
}
"""What torch tools/autograd/derivatives.yaml (torch 2.13) says of an operator. One that is not here saves its input and
has a derivative in one kernel. Temporaries of one C++ expression live to its end (csrc/autograd/FunctionsManual.cpp).
"""
_ONE_KERNEL = Elementwise("input")


def cast(tape: Tape, x: Value, dtype: str, label: str = "to") -> Value:
    """``x.to(dtype)``: keeps nothing; its backward casts the gradient back."""
    if x.dtype == dtype:
        return x
    if isinstance(x.origin, Parameter) or x.storage is None:
        return cast_weight(tape, x, dtype)
    return operator(tape, tape.value(x.shape, dtype, label), x, "to backward")


def cast_weight(tape: Tape, weight: Value, dtype: str) -> Value:
    """Return autocast's copy of a weight: made once, cached until autocast ends, alive while the graph saves it."""
    if weight.dtype == dtype:
        return weight
    parameter = weight.origin if isinstance(weight.origin, Parameter) else None
    key = (
        id(weight.origin) if weight.origin is not None and not (parameter is not None and parameter.used_as_view) else 0
    )
    cached = tape.casts.get(key) if key else None
    if cached is not None:
        return cached
    again = tape.frame is not None and tape.frame.recomputed is not None  # a recompute has a cache of its own
    elsewhere = key and not again and parameter is not None and parameter.shared_with_earlier
    out = tape.external(weight.shape, dtype) if elsewhere else tape.value(weight.shape, dtype, "autocast copy")
    shape, source = weight.shape, weight.dtype

    def run(grad: Storage) -> list[Storage | None]:
        return [tape.new(shape, source, "to backward")]

    if key and parameter is not None and (parameter.shared_with_later or parameter.shared_with_earlier):
        from memcheck.autograd.shared import shared_copy

        out = tape.record(out, (weight,), shared_copy(parameter, dtype, run))
    else:
        out = tape.record(out, (weight,), run)
    if key:  # only leaves that want a gradient are cached (aten/src/ATen/autocast_mode.cpp, cached_cast)
        tape.casts[key] = out
    return out


def convert_weight(tape: Tape, weight: Value, dtype: str) -> Value:
    """``weight.to(dtype)`` in module code: a copy that nothing caches."""
    if weight.dtype == dtype:
        return weight
    return operator(tape, tape.value(weight.shape, dtype, "to"), weight, "to backward")


def add(tape: Tape, a: Value, b: Value, label: str = "add") -> Value:
    """``a + b`` of equal shapes: keeps nothing, hands its gradient to both."""
    return operator(tape, tape.value(a.shape, promote(a.dtype, b.dtype), label), (a, b), GRAD_UNCHANGED, validated=True)


def add_in_place(tape: Tape, a: Value, b: Value, label: str = "add") -> Value:
    """``a += b`` of equal shapes and dtypes: the sum is where ``a`` was."""
    return operator(tape, Value(a.storage, a.shape, a.dtype), (a, b), GRAD_UNCHANGED)


def add_bias(tape: Tape, x: Value, bias: Value, label: str = "add") -> Value:
    """``x + bias`` with a broadcast bias: its gradient is a sum over rows."""
    return operator(tape, tape.value(x.shape, x.dtype, label), (x, bias), [GRAD_UNCHANGED, "sum"])


def mul(tape: Tape, a: Value, b: Value, label: str = "mul") -> Value:
    """``a * b`` with broadcasting: each factor is kept when the other wants a gradient."""
    shape = a.shape if (a.numel, len(a.shape)) >= (b.numel, len(b.shape)) else b.shape
    wide = promote(a.dtype, b.dtype)
    out = tape.value(shape, wide, label)
    na, nb = a.origin is not None, b.origin is not None
    kept = (a.storage if nb else None, b.storage if na else None)
    a_dtype, b_dtype = a.dtype, b.dtype

    def run(grad: Storage) -> list[Storage | None]:
        ga = tape.new(shape, promote(grad.dtype, b_dtype), label + " backward") if na else None
        gb = tape.new(shape, promote(grad.dtype, a_dtype), label + " backward") if nb else None
        return [ga, gb]

    return tape.record(out, (a, b), run, validated=True, saves_first=True, saves=kept)


def unary(tape: Tape, x: Value, name: str, label: str = "") -> Value:
    """An operator of one tensor: a row of ``ELEMENTWISE``. ``label``: of its tensors, if not ``name``."""
    row, label = ELEMENTWISE.get(name, _ONE_KERNEL), label or name
    out = tape.value(x.shape, x.dtype, label)
    kept, label = out if row.saves == "result" else x, label + " backward"
    if not row.temporaries:
        return operator(tape, out, x, label, saves=(kept,))
    temporaries = [(x.shape, dtype or x.dtype, label) for dtype in row.temporaries]
    return operator(tape, out, x, label, saves=(kept,), temporaries=temporaries)


def subtract(tape: Tape, a: Value, b: Value, label: str = "sub") -> Value:
    """``a - b`` of equal shapes: keeps nothing; the second one's gradient is a negated copy."""
    out = tape.value(a.shape, promote(a.dtype, b.dtype), label)
    return operator(tape, out, (a, b), [GRAD_UNCHANGED, label + " backward"])


def scale(tape: Tape, x: Value, label: str = "mul") -> Value:
    """Multiplication by a Python number: keeps nothing."""
    return operator(tape, tape.value(x.shape, x.dtype, label), x, label + " backward")


def scale_in_place(tape: Tape, x: Value, label: str = "mul_") -> Value:
    """``x *= number``: its gradient is a new tensor all the same."""
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, label + " backward")


def shift(tape: Tape, x: Value, label: str = "add", other: str | None = None) -> Value:
    """``x + c`` with a constant, or a tensor of dtype ``other`` that needs no gradient: the gradient passes through."""
    out = tape.value(x.shape, promote(x.dtype, other) if other else x.dtype, label)
    return operator(tape, out, x, GRAD_UNCHANGED, validated=True)


def power(tape: Tape, x: Value) -> Value:
    """``x ** n`` for a number n > 1."""
    return unary(tape, x, "pow")


def mean_rows(tape: Tape, x: Value) -> Value:
    """``x.mean(-1, keepdim=True)``: keeps nothing; backward divides an expanded gradient."""
    return operator(tape, tape.value((*x.shape[:-1], 1), x.dtype, "mean"), x, "mean backward")


def subtract_rows(tape: Tape, x: Value, rows: Value) -> Value:
    """``x - mean``: keeps nothing; the mean's gradient is a negated tensor of x's size, summed."""
    out = tape.value(x.shape, x.dtype, "sub")
    total = (rows.shape, x.dtype, "sum")
    return operator(tape, out, (x, rows), [GRAD_UNCHANGED, total], temporaries=[(x.shape, x.dtype, "neg")])


def divide_rows(tape: Tape, x: Value, rows: Value) -> Value:
    """``x / rows``: keeps both. The gradient of the rows comes first, ``-grad * ((x / rows) / rows)``: its four tensors
    of x's size live to the end of that expression (FunctionsManual.cpp, div_tensor_other_grad); it is summed.
    """
    out = tape.value(x.shape, x.dtype, "div")
    shape, dtype, small = x.shape, x.dtype, rows.shape
    nx, nr = x.origin is not None, rows.origin is not None

    def run(grad: Storage) -> list[Storage | None]:
        pieces = [tape.new(shape, dtype, "div backward") for _ in range(4 if nr else 0)]
        del pieces[:3]
        total = tape.new(small, dtype, "sum") if nr else None
        pieces.clear()
        return [tape.new(shape, dtype, "div backward") if nx else None, total]

    return tape.record(out, (x, rows), run, saves=(x.storage, rows.storage))


def clamp(tape: Tape, x: Value, bounds: int) -> Value:
    """``x.clamp(...)`` with one or two bounds: keeps x; backward compares it with each of them."""
    return unary(tape, x, "clamp" if bounds == 2 else "clamp to one bound", "clamp")


def where(tape: Tape, mask: Storage, a: Value, b: Value) -> Value:
    """``torch.where(mask, a, b)``: keeps the mask; each side gets a gradient of its own."""
    wide = promote(a.dtype, b.dtype)
    out = tape.value(a.shape, wide, "where")
    shape, wants = a.shape, (a.origin is not None, b.origin is not None)

    def run(grad: Storage) -> list[Storage | None]:
        return [tape.new(shape, grad.dtype, "where backward") if wanted else None for wanted in wants]

    return tape.record(out, (a, b), run, validated=True, saves=(mask,))


def dropout(tape: Tape, x: Value, p: float) -> Value:
    """``F.dropout`` in training: keeps a mask of one byte per element (native_dropout)."""
    if p == 0.0:
        return x
    out = tape.value(x.shape, x.dtype, "dropout")
    mask = tape.new(x.shape, "bool", "dropout mask")
    return operator(tape, out, x, "dropout backward", saves=(mask,))


def copy(tape: Tape, x: Value, label: str) -> Value:
    """``.contiguous()`` of a strided view, ``repeat``, ``cat`` of one input: a new tensor, nothing kept."""
    return operator(tape, tape.value(x.shape, x.dtype, label), x, GRAD_UNCHANGED)


def cat(tape: Tape, values: tuple[Value, ...], shape: tuple[int, ...], label: str = "cat") -> Value:
    """``torch.cat``: a new tensor of the widest dtype; each part's gradient is a view of the whole, or a cast of it."""
    dtype = values[0].dtype
    for value in values:
        dtype = promote(dtype, value.dtype)
    out = tape.value(shape, dtype, label)
    return operator(tape, out, values, [GRAD_UNCHANGED if value.dtype == dtype else "to backward" for value in values])
