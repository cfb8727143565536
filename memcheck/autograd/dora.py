"""DoRA: ``result + (m / |W + BA| - 1) * W x + (m / |W + BA|) * BA x * scaling``.

Source: peft 0.21 tuners/lora/variants.py (DoraLinearVariant.forward) and tuners/lora/dora.py (DoraLinearLayer).
"""

from __future__ import annotations

from memcheck.autograd.elementwise import add, cast, dropout, mul, scale
from memcheck.autograd.tensor import Tape, Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.autograd.matrix import Weights


def magnitude_scaled(tape: Tape, x: Value, result: Value, w: Weights, label: str) -> Value:
    """The layer's output with its adapter. ``x``: in the adapter's dtype; ``result``: of the base layer.

    Whole weights are made in every forward, and variables hold them to its end: the identity matrix, its product with
    both adapter matrices, the base weight in the adapter's dtype, and two more for their norm.
    """
    from memcheck.autograd.matrix import matmul, product

    down, up, magnitude = w.lora_a, w.lora_b, w.magnitude
    if down is None or up is None or magnitude is None:
        raise TypeError
    outputs, inputs = w.weight.shape
    dropped = dropout(tape, x, w.dropout)
    base: Value | None = result if w.dropout == 0.0 else None
    del x
    eye = tape.value((inputs, inputs), down.dtype, "identity")
    row = matmul(tape, eye, down, label + ".lora_A of the identity")
    merged = matmul(tape, row, up, label + ".lora_B of the identity")
    del eye, row  # `x_eye` is a variable of get_lora_weight; the product may have kept autocast's copy of it instead
    delta = cast(tape, merged, dropped.dtype, "lora weight")
    del merged
    weight = _in_dtype_of(tape, w, dropped)
    scaled = tape.new((outputs, inputs), dropped.dtype, "scaled lora weight")
    total = tape.new((outputs, inputs), dropped.dtype, "weight + lora weight")
    norm = tape.value((1, outputs), dropped.dtype, "weight norm")
    del scaled, total
    ratio = mul(tape, tape.parameter(magnitude), norm, "magnitude / norm")
    low = matmul(tape, dropped, down, label + ".lora_A")
    adapted = matmul(tape, low, up, label + ".lora_B")
    del low
    if base is None:  # F.linear(x, weight): keeps this copy of the weight
        base = product(tape, dropped, weight, label)
    elif w.bias is not None:
        base = add(tape, base, Value(tape.new((1, outputs), w.bias.dtype, "bias"), base.shape, base.dtype), "- bias")
    first = mul(tape, ratio, base, "(ratio - 1) * base")
    del base
    second = scale(tape, mul(tape, ratio, adapted, "ratio * adapted"), "lora scaling")
    del adapted
    extra = add(tape, first, second, "dora")
    del first, second, delta, weight
    return add(tape, result, extra, "lora sum")


def _in_dtype_of(tape: Tape, w: Weights, x: Value) -> Value:
    """``dequantize_module_weight(base_layer).to(x.dtype)``: the weight itself where it is of that dtype."""
    if w.quantized or w.weight.dtype != x.dtype:
        return tape.value(w.weight.shape, x.dtype, "base weight in the adapter's dtype")
    return tape.parameter(w.weight)
