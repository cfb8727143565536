"""Matrix products: linear layers, adapters, embedding tables.

A linear layer keeps its input when its weight is trained, and its weight (counted elsewhere, or autocast's copy of it)
when its input wants a gradient (derivatives.yaml: mm, addmm). LoRA follows peft 0.21's Linear.forward.
"""

from __future__ import annotations

from memcheck.autograd.elementwise import add, cast, cast_weight, dropout, scale
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import RESTING, Parameter, Tape, Value


class Weights:
    """The parameters of one linear layer, with its adapter if it has one."""

    __slots__ = (
        "bias",
        "computes",
        "dequantized",
        "dropout",
        "faked",
        "held",
        "keeps_input",
        "lora_a",
        "lora_b",
        "magnitude",
        "quantized",
        "rows",
        "weight",
    )

    def __init__(
        self,
        weight: Parameter,
        bias: Parameter | None = None,
        lora: tuple[Parameter, Parameter] | None = None,
        quantized: bool = False,
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.lora_a = lora[0] if lora else None
        self.lora_b = lora[1] if lora else None
        self.quantized = quantized
        """The weight is stored quantised, and is dequantised for each product."""
        self.held = ""
        """How the weight is stored where peft adapts another library's layer; empty: the framework has layers of its
        own.
        """
        self.dequantized: str | None = None
        """The dtype that comes out of dequantisation, where it is not that of the product."""
        self.faked = ("", 0)
        """The quantizer of quantization-aware training, if any, and how many share a scale."""
        self.keeps_input = False
        """The 4-bit product holds on to its input, as it did before bitsandbytes 0.43.2 (#1270)."""
        self.computes: str | None = None
        """The dtype in which 4-bit products are computed (``bnb_4bit_compute_dtype``); None: that of their input."""
        self.rows: str | None = None
        """The dtype in which the adapter's matrices are stored, if peft casts its input to it. FSDP1 then gathers them
        by themselves in another dtype, to which autocast casts the input again. None: the dtype in which they are seen.
        """
        self.dropout = 0.0
        """The share of the adapter's input that is dropped."""
        self.magnitude: Parameter | None = None
        """DoRA's trained magnitudes, [1, outputs]."""


def linear(tape: Tape, x: Value, w: Weights, label: str) -> Value:
    """``F.linear`` plus the adapter branch."""
    if w.held and not w.held.startswith(("gptq", "fp8")):
        from memcheck.autograd.quantised import adapted

        return adapted(tape, x, w, label)
    result = dense(tape, x, w, label)
    if w.lora_a is None or w.lora_b is None:
        return result
    base_dtype = result.dtype
    # peft: x = self._cast_input_dtype(x, lora_A.weight.dtype), a variable until its forward returns; autocast casts it
    # again for the product
    x = cast(tape, x, w.rows or w.lora_a.dtype, "lora input")
    if w.magnitude is not None:
        from memcheck.autograd.dora import magnitude_scaled

        total = magnitude_scaled(tape, x, result, w, label)
        del result
        return cast(tape, total, base_dtype, "lora result")
    low = cast(tape, dropout(tape, x, w.dropout), w.lora_a.dtype, "lora input as the product reads it")
    down = matmul(tape, low, w.lora_a, label + ".lora_A")
    del low
    up = matmul(tape, down, w.lora_b, label + ".lora_B")
    del down
    scaled = scale(tape, up, "lora scaling")
    del up
    total = add(tape, result, scaled, "lora sum")
    del scaled, result
    return cast(tape, total, base_dtype, "lora result")


def dense(tape: Tape, x: Value, w: Weights, label: str) -> Value:
    """The product with the base weight."""
    if w.quantized:
        from memcheck.autograd.quantised import product_of

        return product_of(tape, x, w, label)
    if w.faked[1]:
        from memcheck.autograd.fake_quantised import faked_product

        return faked_product(tape, x, w, label)
    return matmul(tape, x, w.weight, label, bias=w.bias)


def matmul(tape: Tape, x: Value, weight: Parameter, label: str, bias: Parameter | None = None) -> Value:
    """``x @ weight.T (+ bias)`` with a weight of shape [outputs, inputs]."""
    return product(tape, x, tape.parameter(weight), label, tape.parameter(bias) if bias is not None else None)


def product(tape: Tape, x: Value, weight: Value, label: str, bias: Value | None = None) -> Value:
    """``F.linear`` on a weight that is a tensor of its own (a cast copy). mm makes dW first, addmm dX."""
    given = x, weight, bias  # the call holds its arguments until the product is made, whatever autocast makes of them
    if tape.autocast:  # autocast_mode.h casts a call's arguments from the last to the first, as gcc evaluates them
        bias = cast_weight(tape, bias, tape.autocast) if bias is not None else None
        weight = cast_weight(tape, weight, tape.autocast)
        x = cast(tape, x, tape.autocast, "autocast input")
    shape = (*x.shape[:-1], weight.shape[0])
    kind = "mm" if bias is None else "addmm"
    out = Value(tape.output(kind, shape, x.dtype, label, weight.shape), shape, x.dtype)
    del given
    nx, nw = x.origin is not None, weight.origin is not None
    # dX is [tokens, inputs], and goes on as [batch, sequence, inputs]
    return operator(
        tape,
        out,
        (x, weight) if bias is None else (x, weight, bias),
        [label + " dX", label + " dW"] if bias is None else [label + " dX", label + " dW", label + " db"],
        saves=(x if nw or (nx and tape.saves_inputs) else None, (weight.storage or RESTING) if nx else None),
        reverse=bias is None,
        viewed=True,
        saves_first=True,
    )


def embedding(tape: Tape, weight: Parameter, rows: tuple[int, ...], dtype: str, label: str = "embedding") -> Value:
    """``F.embedding``: keeps the indices only; backward makes a dense gradient of the whole table."""
    wv = tape.parameter(weight)
    return operator(tape, tape.value((*rows, weight.shape[1]), dtype, label), wv, "embedding backward")
