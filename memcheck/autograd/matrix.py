"""Matrix products: linear layers, adapters, embedding tables.

A linear layer keeps its input when its weight is trained, and its weight (counted elsewhere, or autocast's copy of it)
when its input wants a gradient (derivatives.yaml: mm, addmm). LoRA follows peft 0.21's Linear.forward.

DoRA: ``result + (m / |W + BA| - 1) * W x + (m / |W + BA|) * BA x * scaling``.

Source: peft 0.21 tuners/lora/variants.py (DoraLinearVariant.forward) and tuners/lora/dora.py (DoraLinearLayer).
"""

from __future__ import annotations

from memcheck.autograd.operator import Gradient, add, cast, cast_weight, copy, dropout, mul, operator, scale
from memcheck.autograd.tensor import SAVED_WEIGHT, Parameter, Tape, Value


class Weights:
    """The parameters of one linear layer, with its adapter if it has one."""

    __slots__ = (
        "bias",
        "compute_dtype",
        "dequantized_dtype",
        "dropout",
        "fake_quantizer",
        "keeps_input",
        "lora_a",
        "lora_b",
        "magnitude",
        "peft_base_format",
        "peft_input_dtype",
        "quantized",
        "weight",
    )

    def __init__(
        self,
        weight: Parameter,
        bias: Parameter | None = None,
        lora: tuple[Parameter, Parameter] | None = None,
        quantized: bool = False,
    ) -> None:
        """Set the weight [outputs, inputs], the bias [outputs], and LoRA's A [rank, inputs] and B [outputs, rank]."""
        self.weight = weight
        self.bias = bias
        self.lora_a = lora[0] if lora else None
        self.lora_b = lora[1] if lora else None
        self.quantized = quantized
        """The weight is stored quantised, and is dequantised for each product."""
        self.peft_base_format = ""
        """How the weight is stored where peft adapts another library's layer; empty: the framework has layers of its
        own.
        """
        self.dequantized_dtype: str | None = None
        """The dtype that comes out of dequantisation, where it is not that of the product."""
        self.fake_quantizer = ("", 0)
        """Quantizer of quantization-aware training (empty: none), and the number of inputs that share a scale."""
        self.keeps_input = False
        """The 4-bit product saves its input, as bitsandbytes before 0.43.2 did (#1270)."""
        self.compute_dtype: str | None = None
        """The dtype in which 4-bit products are computed (``bnb_4bit_compute_dtype``); None: that of their input."""
        self.peft_input_dtype: str | None = None
        """The dtype in which the adapter's matrices are stored, if peft casts its input to it. FSDP1 then gathers them
        by themselves in another dtype, to which autocast casts the input again. None: the dtype in which they are seen.
        """
        self.dropout = 0.0
        """The share of the adapter's input that is dropped."""
        self.magnitude: Parameter | None = None
        """DoRA's trained magnitudes, [1, outputs]."""


def linear(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Compute ``F.linear(x)`` of a layer [outputs, inputs], plus the output of its adapter if it has one."""
    if weights.peft_base_format and not weights.peft_base_format.startswith(("gptq", "fp8")):
        return adapted(tape, x, weights, label)
    result = dense(tape, x, weights, label)
    if weights.lora_a is None or weights.lora_b is None:
        return result
    base_dtype = result.dtype
    # peft: x = self._cast_input_dtype(x, lora_A.weight.dtype), a variable until its forward returns; autocast casts it
    # again for the product
    x = cast(tape, x, weights.peft_input_dtype or weights.lora_a.dtype, "lora input")
    if weights.magnitude is not None:
        total = magnitude_scaled(tape, x, result, weights, label)
        del result
        return cast(tape, total, base_dtype, "lora result")
    low = cast(tape, dropout(tape, x, weights.dropout), weights.lora_a.dtype, "lora input as the product reads it")
    down = matmul(tape, low, weights.lora_a, label + ".lora_A")
    del low
    up = matmul(tape, down, weights.lora_b, label + ".lora_B")
    del down
    scaled = scale(tape, up, "lora scaling")
    del up
    total = add(tape, result, scaled, "lora sum")
    del scaled, result
    return cast(tape, total, base_dtype, "lora result")


def dense(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Compute the product with the base weight, which may be quantised or fake-quantised."""
    if weights.quantized:
        from memcheck.autograd.quantised import product_of

        return product_of(tape, x, weights, label)
    if weights.fake_quantizer[1]:
        from memcheck.autograd.fake_quantised import held_scales, quantised_operands

        quantised_x, quantised_weight, scales = quantised_operands(tape, x, weights)
        bias = tape.parameter(weights.bias) if weights.bias is not None else None
        out = product(tape, quantised_x, quantised_weight, label, bias)
        return held_scales(tape, out, scales)
    return matmul(tape, x, weights.weight, label, bias=weights.bias)


def matmul(tape: Tape, x: Value, weight: Parameter, label: str, bias: Parameter | None = None) -> Value:
    """Compute ``x @ weight.T (+ bias)`` with a weight of shape [outputs, inputs]."""
    return product(tape, x, tape.parameter(weight), label, tape.parameter(bias) if bias is not None else None)


def product(tape: Tape, x: Value, weight: Value, label: str, bias: Value | None = None) -> Value:
    """Compute ``F.linear(x, weight, bias)`` with autocast's casts. ``weight``: [outputs, inputs].

    Saves ``x`` if the weight needs a gradient, and the weight if ``x`` needs one. Backward of mm makes dW before dX,
    that of addmm dX before dW (derivatives.yaml: mm, addmm).
    """
    arguments = x, weight, bias  # the caller holds them until the product is made; autocast casts copies
    if tape.autocast:  # autocast_mode.h casts a call's arguments from the last to the first, as gcc evaluates them
        bias = cast_weight(tape, bias, tape.autocast) if bias is not None else None
        weight = cast_weight(tape, weight, tape.autocast)
        x = cast(tape, x, tape.autocast, "autocast input")
    shape = (*x.shape[:-1], weight.shape[0])
    kind = "mm" if bias is None else "addmm"
    out = Value(tape.output(kind, shape, x.dtype, label, weight.shape), shape, x.dtype)
    del arguments
    x_needs_grad, weight_needs_grad = x.origin is not None, weight.origin is not None
    saved_x = x if weight_needs_grad or (x_needs_grad and tape.saves_linear_inputs) else None
    saved_weight = (weight.storage or SAVED_WEIGHT) if x_needs_grad else None
    inputs: tuple[Value, ...] = (x, weight)
    gradients: list[Gradient] = [label + " dX", label + " dW"]
    if bias is not None:
        inputs = (x, weight, bias)
        gradients.append(label + " db")
    return operator(
        tape,
        out,
        inputs,
        gradients,
        saves=(saved_x, saved_weight),
        reverse=bias is None,
        viewed=True,  # dX is [tokens, inputs], and goes on as a view [batch, sequence, inputs]
        saves_first=True,
    )


def embedding(tape: Tape, weight: Parameter, rows: tuple[int, ...], dtype: str, label: str = "embedding") -> Value:
    """Look up ``rows`` of a table (``F.embedding``). Saves the indices alone; backward makes a dense gradient of the
    whole table.

    ``weight``: [vocabulary on this rank, hidden]. ``rows``: the shape of the indices.
    """
    table = tape.parameter(weight)
    return operator(tape, tape.value((*rows, weight.shape[1]), dtype, label), table, "embedding backward")


def magnitude_scaled(tape: Tape, x: Value, result: Value, weights: Weights, label: str) -> Value:
    """Compute the output of a linear layer with a DoRA adapter, [..., outputs].

    ``x``: the input in the adapter's dtype. ``result``: the output of the base layer. Each forward makes matrices of
    the weight's size: the identity [inputs, inputs], its product with both LoRA matrices, the base weight in the
    adapter's dtype, and two temporaries for the norm (peft DoraLinearLayer.forward, get_weight_norm).
    """
    down, up, magnitude = weights.lora_a, weights.lora_b, weights.magnitude
    if down is None or up is None or magnitude is None:
        raise TypeError
    outputs, inputs = weights.weight.shape
    dropped = dropout(tape, x, weights.dropout)
    base: Value | None = result if weights.dropout == 0.0 else None
    del x
    eye = tape.value((inputs, inputs), down.dtype, "identity")
    row = matmul(tape, eye, down, label + ".lora_A of the identity")
    merged = matmul(tape, row, up, label + ".lora_B of the identity")
    del eye, row  # `x_eye` is a variable of get_lora_weight; the product may have kept autocast's copy of it instead
    delta = cast(tape, merged, dropped.dtype, "lora weight")
    del merged
    weight = _in_dtype_of(tape, weights, dropped)
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
    elif weights.bias is not None:
        base = add(
            tape, base, Value(tape.new((1, outputs), weights.bias.dtype, "bias"), base.shape, base.dtype), "- bias"
        )
    first = mul(tape, ratio, base, "(ratio - 1) * base")
    del base
    second = scale(tape, mul(tape, ratio, adapted, "ratio * adapted"), "lora scaling")
    del adapted
    extra = add(tape, first, second, "dora")
    del first, second, delta, weight
    return add(tape, result, extra, "lora sum")


def _in_dtype_of(tape: Tape, weights: Weights, x: Value) -> Value:
    """Compute ``dequantize_module_weight(base_layer).to(x.dtype)``: the weight itself where it is of that dtype."""
    if weights.quantized or weights.weight.dtype != x.dtype:
        return tape.value(weights.weight.shape, x.dtype, "base weight in the adapter's dtype")
    return tape.parameter(weights.weight)


def adapted(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Run peft's forward of LoRA over a layer of bitsandbytes or AWQ (tuners/lora/bnb.py, awq.py).

    Under autocast the input is not cast to the adapter's dtype. The adapter's output is cast to the dtype of the base
    layer's output before both are added; AWQ's layer casts before it scales, bitsandbytes' afterwards.
    """
    result = dense(tape, x, weights, label)
    if weights.lora_a is None or weights.lora_b is None:
        return result
    from memcheck.autograd.quantised import FOUR_BITS

    if weights.peft_base_format in FOUR_BITS:
        result = copy(tape, result, "4-bit result.clone()")
    source = result.dtype
    converts = not tape.autocast
    if converts:
        x = cast(tape, x, weights.lora_a.dtype, "lora input")
    if weights.magnitude is not None:
        total = magnitude_scaled(tape, x, result, weights, label)
        del result
        return cast(tape, total, source, "lora result") if converts else total
    low = dropout(tape, x, weights.dropout)
    down = matmul(tape, low, weights.lora_a, label + ".lora_A")
    del low
    output = matmul(tape, down, weights.lora_b, label + ".lora_B")
    del down
    if weights.peft_base_format.startswith("awq"):
        output = cast(tape, output, source, "lora output") if converts else output
        output = scale(tape, output, "lora scaling")
    else:
        output = scale(tape, output, "lora scaling")
        output = cast(tape, output, source, "lora output") if converts else output
    return add(tape, result, output, "lora sum")
