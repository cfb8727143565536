"""Operators and what autograd keeps of each: casts, sums, products, activations, dropout, and the layout of rows."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.autograd.tensor import SAVED_WEIGHT, Parameter, SavedWeight, Storage, Tape, Value, promote, shared_copy
from memcheck.record import Record

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
    return (a if b.needs_grad else None, b if a.needs_grad else None)


def evaluate(tape: Tape, formula: Formula, grad: Storage) -> list[Storage | None]:
    """Run the backward of an operator: allocate its temporaries and gradients, and return a gradient per input."""
    made, temporaries, later, reverse, viewed, _ = formula
    component = tape.component
    temporary_storages = [Storage(tape, *tensor, component) for tensor in temporaries] if temporaries else []
    gradients: list[Storage | None] = []
    for gradient in reversed(made) if reverse else made:
        if gradient is None:
            gradients.append(None)
        elif gradient is GRAD_UNCHANGED:
            gradients.append(grad)
        else:
            shape, dtype, label = gradient
            gradients.append(Storage(tape, shape, dtype, label, component))
    if later:
        temporary_storages += [Storage(tape, *tensor, component) for tensor in later]
    del temporary_storages
    if reverse:
        gradients.reverse()
    if viewed and gradients[0] is not None:
        gradients[0].holders += 1  # its base also refers to the storage
    return gradients


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
"""An operator that saves its input and has a derivative in one kernel."""


def cast(tape: Tape, x: Value, dtype: str, label: str = "to") -> Value:
    """Compute ``x.to(dtype)``: keeps nothing; its backward casts the gradient back."""
    if x.dtype == dtype:
        return x
    if isinstance(x.origin, Parameter) or x.storage is None:
        return cast_weight(tape, x, dtype)
    return operator(tape, tape.value(x.shape, dtype, label), x, "to backward")


def cast_weight(tape: Tape, weight: Value, dtype: str) -> Value:
    """Return autocast's copy of a weight: made once, cached until autocast ends, alive while the graph saves it.

    Only leaves that want a gradient are cached, and a view is no leaf (aten/src/ATen/autocast_mode.cpp, cached_cast).
    """
    if weight.dtype == dtype:
        return weight
    parameter = weight.origin if isinstance(weight.origin, Parameter) else None
    if not weight.needs_grad or (parameter is not None and parameter.used_as_view):
        return operator(tape, tape.value(weight.shape, dtype, "autocast copy"), weight, "to backward")
    key = id(weight.origin)
    if key not in tape.casts:
        tape.casts[key] = _cached_copy(tape, weight, parameter, dtype)
    return tape.casts[key]


def _cached_copy(tape: Tape, weight: Value, parameter: Parameter | None, dtype: str) -> Value:
    """Copy a trained weight to autocast's dtype. Layers that share the weight also share the copy and its gradient."""
    if parameter is None or not (parameter.shared_with_later or parameter.shared_with_earlier):
        return operator(tape, tape.value(weight.shape, dtype, "autocast copy"), weight, "to backward")
    recomputing = tape.frame is not None and tape.frame.recomputed is not None  # a recompute has a cache of its own
    if parameter.shared_with_earlier and not recomputing:
        out = tape.external(weight.shape, dtype)  # the earlier layer's copy
    else:
        out = tape.value(weight.shape, dtype, "autocast copy")
    shape, source = weight.shape, weight.dtype
    return tape.record(
        out, (weight,), shared_copy(parameter, dtype, lambda grad: [tape.new(shape, source, "to backward")])
    )


def convert_weight(tape: Tape, weight: Value, dtype: str) -> Value:
    """Compute ``weight.to(dtype)`` in module code: a copy that nothing caches."""
    if weight.dtype == dtype:
        return weight
    return operator(tape, tape.value(weight.shape, dtype, "to"), weight, "to backward")


def add(tape: Tape, a: Value, b: Value, label: str = "add") -> Value:
    """``a + b`` of equal shapes: saves nothing; both inputs get the result's gradient itself."""
    return operator(tape, tape.value(a.shape, promote(a.dtype, b.dtype), label), (a, b), GRAD_UNCHANGED, validated=True)


def add_in_place(tape: Tape, a: Value, b: Value, label: str = "add") -> Value:
    """``a += b`` of equal shapes and dtypes: the sum is where ``a`` was."""
    return operator(tape, Value(a.storage, a.shape, a.dtype), (a, b), GRAD_UNCHANGED)


def add_bias(tape: Tape, x: Value, bias: Value, label: str = "add") -> Value:
    """``x + bias`` with a broadcast bias: its gradient is a sum over rows."""
    return operator(tape, tape.value(x.shape, x.dtype, label), (x, bias), [GRAD_UNCHANGED, "sum"])


def mul(tape: Tape, a: Value, b: Value, label: str = "mul") -> Value:
    """Compute ``a * b`` with broadcasting: each factor is saved if the other one needs a gradient.

    The engine sums a gradient that is larger than its input, and casts it to the input's dtype.
    """
    shape = max(a, b, key=lambda factor: (factor.numel, len(factor.shape))).shape  # the other one is broadcast to it
    out = tape.value(shape, promote(a.dtype, b.dtype), label)
    a_needs_grad, b_needs_grad = a.needs_grad, b.needs_grad
    saved = (a.storage if b_needs_grad else None, b.storage if a_needs_grad else None)
    a_dtype, b_dtype = a.dtype, b.dtype

    def run(grad: Storage) -> list[Storage | None]:
        grad_a = tape.new(shape, promote(grad.dtype, b_dtype), label + " backward") if a_needs_grad else None
        grad_b = tape.new(shape, promote(grad.dtype, a_dtype), label + " backward") if b_needs_grad else None
        return [grad_a, grad_b]

    return tape.record(out, (a, b), run, validated=True, saves_first=True, saves=saved)


def unary(tape: Tape, x: Value, name: str, label: str = "") -> Value:
    """Run an elementwise operator of one tensor, and return its result.

    ``name``: torch's name. ``ELEMENTWISE`` says what it saves and which temporaries its backward makes; an operator
    that is not there saves its input. ``label``: the name of its tensors in inventories; empty: ``name``.
    """
    label = label or name
    spec = ELEMENTWISE.get(name, _ONE_KERNEL)
    out = tape.value(x.shape, x.dtype, label)
    saved = out if spec.saves == "result" else x
    backward_label = label + " backward"
    if not spec.temporaries:
        return operator(tape, out, x, backward_label, saves=(saved,))
    temporaries = [(x.shape, dtype or x.dtype, backward_label) for dtype in spec.temporaries]
    return operator(tape, out, x, backward_label, saves=(saved,), temporaries=temporaries)


def subtract(tape: Tape, a: Value, b: Value, label: str = "sub") -> Value:
    """Compute ``a - b`` of equal shapes: keeps nothing; the second one's gradient is a negated copy."""
    out = tape.value(a.shape, promote(a.dtype, b.dtype), label)
    return operator(tape, out, (a, b), [GRAD_UNCHANGED, label + " backward"])


def scale(tape: Tape, x: Value, label: str = "mul") -> Value:
    """``x * number``: saves nothing; backward makes a new tensor, as forward does."""
    return operator(tape, tape.value(x.shape, x.dtype, label), x, label + " backward")


def scale_in_place(tape: Tape, x: Value, label: str = "mul_") -> Value:
    """``x *= number``: its gradient is a new tensor all the same."""
    return operator(tape, Value(x.storage, x.shape, x.dtype), x, label + " backward")


def shift(tape: Tape, x: Value, label: str = "add", other: str | None = None) -> Value:
    """Compute ``x + c`` with a constant, or a tensor of dtype ``other`` that needs no gradient: the gradient passes
    through.
    """
    out = tape.value(x.shape, promote(x.dtype, other) if other else x.dtype, label)
    return operator(tape, out, x, GRAD_UNCHANGED, validated=True)


def power(tape: Tape, x: Value) -> Value:
    """``x ** n`` for a number n > 1."""
    return unary(tape, x, "pow")


def mean_rows(tape: Tape, x: Value) -> Value:
    """``x.mean(-1, keepdim=True)``: keeps nothing; backward divides an expanded gradient."""
    return operator(tape, tape.value((*x.shape[:-1], 1), x.dtype, "mean"), x, "mean backward")


def subtract_rows(tape: Tape, x: Value, rows: Value) -> Value:
    """Compute ``x - mean``: keeps nothing; the mean's gradient is a negated tensor of x's size, summed."""
    out = tape.value(x.shape, x.dtype, "sub")
    total = (rows.shape, x.dtype, "sum")
    return operator(tape, out, (x, rows), [GRAD_UNCHANGED, total], temporaries=[(x.shape, x.dtype, "neg")])


def divide_rows(tape: Tape, x: Value, rows: Value) -> Value:
    """Compute ``x / rows`` with one number per row: saves both.

    The gradient of the rows comes first: ``-grad * ((x / rows) / rows)``, summed over each row. Four tensors of x's
    size live to the end of that expression (FunctionsManual.cpp, div_tensor_other_grad); its result lives to the sum.
    """
    out = tape.value(x.shape, x.dtype, "div")
    shape, dtype, rows_shape = x.shape, x.dtype, rows.shape
    x_needs_grad, rows_need_grad = x.needs_grad, rows.needs_grad

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: the gradient of ``rows`` takes four products of x's size, one after the other, and a sum."""
        grad_rows = None
        if rows_need_grad:
            expression = [tape.new(shape, dtype, "div backward") for _ in range(4)]
            del expression[:3]
            grad_rows = tape.new(rows_shape, dtype, "sum")
            expression.clear()
        return [tape.new(shape, dtype, "div backward") if x_needs_grad else None, grad_rows]

    return tape.record(out, (x, rows), run, saves=(x.storage, rows.storage))


def clamp(tape: Tape, x: Value, bounds: int) -> Value:
    """``x.clamp(...)`` with one or two bounds: keeps x; backward compares it with each of them."""
    return unary(tape, x, "clamp" if bounds == 2 else "clamp to one bound", "clamp")


def where(tape: Tape, mask: Storage, a: Value, b: Value) -> Value:
    """Compute ``torch.where(mask, a, b)``, all of one shape: saves the mask; ``a`` and ``b`` get separate gradients."""
    wide = promote(a.dtype, b.dtype)
    out = tape.value(a.shape, wide, "where")
    shape, wants = a.shape, (a.needs_grad, b.needs_grad)

    def run(grad: Storage) -> list[Storage | None]:
        return [tape.new(shape, grad.dtype, "where backward") if wanted else None for wanted in wants]

    return tape.record(out, (a, b), run, validated=True, saves=(mask,))


def dropout(tape: Tape, x: Value, p: float) -> Value:
    """Compute ``F.dropout`` in training: keeps a mask of one byte per element (native_dropout)."""
    if p == 0.0:
        return x
    out = tape.value(x.shape, x.dtype, "dropout")
    mask = tape.new(x.shape, "bool", "dropout mask")
    return operator(tape, out, x, "dropout backward", saves=(mask,))


def copy(tape: Tape, x: Value, label: str) -> Value:
    """``.contiguous()`` of a strided view, ``repeat``, ``cat`` of one input: a new tensor, nothing kept."""
    return operator(tape, tape.value(x.shape, x.dtype, label), x, GRAD_UNCHANGED)


def cat(tape: Tape, values: tuple[Value, ...], shape: tuple[int, ...], label: str = "cat") -> Value:
    """Compute ``torch.cat``: a new tensor of the widest dtype; each part's gradient is a view of the whole, or a cast
    of it.
    """
    dtype = values[0].dtype
    for value in values:
        dtype = promote(dtype, value.dtype)
    out = tape.value(shape, dtype, label)
    return operator(tape, out, values, [GRAD_UNCHANGED if value.dtype == dtype else "to backward" for value in values])


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
