"""Linear layers of quantization-aware training: products of fake-quantised inputs and weights.

Source: torchao 0.18 ``quantization/qat/linear.py`` (FakeQuantizedLinear, as Int8DynActInt4WeightQATQuantizer makes it)
and ``fake_quantizer.py``, ``quant_primitives.py`` (_fake_quantize_affine): inputs by token to int8, weights by group to
int4, both through fp32 and back. Traced on the CPU: the clamp keeps what it clamps in fp32, and the product the result;
either way there are 14 bytes of an element at once. Scales and zero points are attributes of the layer's quantizers,
and stay when the graph has gone.
"""

from __future__ import annotations

from memcheck.autograd.elementwise import cast
from memcheck.autograd.operator import operator
from memcheck.autograd.outliving import held_by_ctx, holding
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.autograd.context import Setting
    from memcheck.autograd.matrix import Weights


INT4 = "int8-int4"
"""The quantizer that takes inputs by token to int8, and weights through fp32 to int4."""


def fake(weights: Weights, setting: Setting, tied: bool) -> None:
    """Quantize inputs and weights on their way into the product, where groups divide a row.

    ``tied``: the weight is the embedding's, of which torchtune makes no linear layer.

    Raises:
        UnsupportedError: they do not, where the quantizer itself stops.
    """
    kind, group = str(setting.option("quantizer")), int(str(setting.option("groupsize", 256)))
    width = weights.weight.shape[1]
    if width % group and kind == INT4:
        message = f"torchao's quantizer of weights views {width:,} inputs in groups of {group:,}, and stops"
        raise UnsupportedError(message, "choose a size that divides every row", "/training/options/groupsize")
    if kind == INT4 or not (tied or width % group):
        weights.faked = (kind, group)


def faked_product(tape: Tape, x: Value, w: Weights, label: str) -> Value:
    """The product of a layer with quantizers, as its own quantizer has it."""
    kind, group = w.faked
    product_of = int4_product if kind == INT4 else fake_quantised_product
    return product_of(tape, x, w.weight, group, label, w.bias)


def int4_product(tape: Tape, x: Value, weight: Parameter, group: int, label: str, bias: Parameter | None) -> Value:
    """``F.linear`` of inputs by token to int8, and of a weight whose groups go through fp32 to int4.

    Raises:
        UnsupportedError: the weight is in fp32 by itself, of which there is no trace.
    """
    from memcheck.autograd.fake_int4 import fake_int4
    from memcheck.autograd.matrix import product

    if tape.parameter(weight).dtype == "fp32":
        message = "quantization-aware training has no memory model on weights that are computed with in fp32"
        raise UnsupportedError(message, "hold them in bf16: precision: {params: bf16}", "/training/precision")
    tokens = x.numel // x.shape[-1]
    scales = (tape.new((2, tokens), "fp32", "scales and zero points"),)
    narrow_x = _fake_quantised(tape, x, tokens)
    narrow_w = fake_int4(tape, tape.parameter(weight), group)
    return _held(tape, product(tape, narrow_x, narrow_w, label, tape.parameter(bias) if bias else None), scales)


def fake_quantised_product(
    tape: Tape, x: Value, weight: Parameter, group: int, label: str, bias: Parameter | None
) -> Value:
    """``F.linear(activation_fake_quantizer(x), weight_fake_quantizer(weight), bias)``."""
    from memcheck.autograd.matrix import product

    tokens, groups = x.numel // x.shape[-1], weight.shape[0] * (weight.shape[1] // group)
    scales = tuple(tape.new((2, n), "fp32", "scales and zero points") for n in (tokens, groups))
    narrow_x = _fake_quantised(tape, x, tokens)
    narrow_w = _fake_quantised(tape, tape.parameter(weight), groups)
    return _held(tape, product(tape, narrow_x, narrow_w, label, tape.parameter(bias) if bias else None), scales)


def _held(tape: Tape, out: Value, scales: tuple[Storage, ...]) -> Value:
    """The product, and the scales that the layer's quantizers keep."""
    if out.origin is None or not tape.grad_enabled:
        return out
    kept = tuple(each for each in scales if held_by_ctx(tape, each) is not None)
    return tape.record(Value(out.storage, out.shape, out.dtype), (out,), holding(lambda grad: [grad], kept))


def _fake_quantised(tape: Tape, x: Value, groups: int) -> Value:
    """Round, clamp, and back: each step a function of its own, whose gradient dies before the next one's result."""
    shape, dtype = x.shape, x.dtype
    inverse = tape.new((groups,), "fp32", "1 / scale")
    divided = tape.new(shape, "fp32", "x / scale")
    rounded = tape.new(shape, "fp32", "rounded")
    del divided
    shifted = tape.value(shape, "fp32", "rounded + zero point")
    del rounded
    shifted = operator(
        tape,
        shifted,
        x,
        "fake quantization backward",
        saves=(inverse,),
        temporaries=[(shape, "fp32", "round backward")],
    )
    clamped = _clamped(tape, shifted)
    del shifted, inverse
    low = cast(tape, clamped, dtype, "quantised")
    centred = Value(tape.new(shape, dtype, "quantised - zero point"), shape, dtype, low.origin)
    del low
    wide = tape.value(shape, "fp32", "dequantised")
    wide = operator(
        tape,
        wide,
        centred,
        (shape, dtype, "dequantise backward, cast"),
        temporaries=[(shape, "fp32", "dequantise backward")],
    )
    del centred
    out = cast(tape, wide, dtype, "fake-quantised")
    del wide, clamped
    return out


def _clamped(tape: Tape, x: Value) -> Value:
    shape, dtype = x.shape, x.dtype
    return operator(
        tape,
        tape.value(shape, dtype, "clamped"),
        x,
        "clamp backward",
        saves=(x,),
        temporaries=[(shape, "bool", "x >= low"), (shape, "bool", "x <= high")],
    )
