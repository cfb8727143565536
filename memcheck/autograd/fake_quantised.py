"""Linear layers of quantization-aware training: products of fake-quantised inputs and weights.

Sources: torchao 0.18 ``quantization/qat/linear.py`` (FakeQuantizedLinear, as Int8DynActInt4WeightQATQuantizer makes
it), ``fake_quantizer.py`` (Int4WeightFakeQuantizer._bf16_activations_forward), ``quant_primitives.py``
(_fake_quantize_affine): inputs by token to int8, weights by group to int4, both through fp32 and back. Traced on the
CPU: the clamp keeps what it clamps in fp32, and the product the result; either way there are 14 bytes of an element at
once. Backward of a weight has four fp32 copies of it; scales want gradients, too. Scales and zero points are attributes
of the layer's quantizers, and stay when the graph has gone.
"""

from __future__ import annotations

from memcheck.autograd.checkpoint import ctx_attribute
from memcheck.autograd.elementwise import cast
from memcheck.autograd.operator import GRAD_UNCHANGED, operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.autograd.context import Setting
    from memcheck.autograd.matrix import Weights


INT4 = "int8-int4"
"""The quantizer that takes inputs by token to int8, and weights through fp32 to int4."""


def fake(weights: Weights, setting: Setting, tied: bool) -> None:
    """Set the fake quantizer of a linear layer, for inputs and weights, where groups divide a row of the weight.

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
        weights.fake_quantizer = (kind, group)


def quantised_operands(tape: Tape, x: Value, w: Weights) -> tuple[Value, Value, tuple[Storage, ...]]:
    """Compute ``activation_fake_quantizer(x)`` and ``weight_fake_quantizer(weight)``; return them and all scales.

    Inputs are quantised by token to int8. A weight goes through its own quantizer, or by groups through fp32 to int4.

    Raises:
        UnsupportedError: the weight is in fp32 by itself, of which there is no trace.
    """
    (kind, group), weight = w.fake_quantizer, tape.parameter(w.weight)
    if kind == INT4 and weight.dtype == "fp32":
        message = "quantization-aware training has no memory model on weights that are computed with in fp32"
        raise UnsupportedError(message, "hold them in bf16: precision: {params: bf16}", "/training/precision")
    tokens, groups = x.numel // x.shape[-1], weight.shape[0] * (weight.shape[1] // group)
    sizes = (tokens,) if kind == INT4 else (tokens, groups)
    scales = tuple(tape.new((2, n), "fp32", "scales and zero points") for n in sizes)
    narrow = _fake_quantised(tape, x, tokens)
    narrow_weight = fake_int4(tape, weight, group) if kind == INT4 else _fake_quantised(tape, weight, groups)
    return narrow, narrow_weight, scales


def held_scales(tape: Tape, out: Value, scales: tuple[Storage, ...]) -> Value:
    """The product, and the scales that the layer's quantizers keep."""
    if out.origin is None or not tape.grad_enabled:
        return out
    kept = tuple(each for each in scales if ctx_attribute(tape, each) is not None)
    return operator(tape, Value(out.storage, out.shape, out.dtype), out, GRAD_UNCHANGED, attributes=kept)


def _fake_quantised(tape: Tape, x: Value, groups: int) -> Value:
    """Quantise and dequantise a tensor with one scale for each of ``groups`` groups, through fp32.

    Rounding, clamping and dequantising are functions of their own. The gradient of each dies before the next is made.
    """
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
    """``clamp(qmin, qmax)``: two masks, and what they choose."""
    masks = [(x.shape, "bool", label) for label in ("x >= low", "x <= high")]
    return operator(tape, tape.value(x.shape, x.dtype, "clamped"), x, "clamp backward", saves=(x,), temporaries=masks)


def fake_int4(tape: Tape, w: Value, group: int) -> Value:
    """Compute ``weight_fake_quantizer(weight)`` of a 16-bit weight [outputs, inputs], in groups of ``group`` inputs."""
    shape, dtype = w.shape, w.dtype
    groups = (w.numel // group,)
    wide = _widened(tape, w)
    high, low = _extreme(tape, wide, groups), _extreme(tape, wide, groups)
    spread = _minus(tape, high, low, groups)
    floored = _floored(tape, spread)
    del spread
    scale = _by_number(tape, floored)
    del floored
    eighth = _by_number(tape, scale)
    zero = _plus(tape, low, eighth, groups)
    del eighth
    moved = _minus(tape, wide, low, groups)
    divided = _divided(tape, moved, scale, groups)
    del moved
    rounded = tape.value(shape, "fp32", "rounded")
    rounded = operator(tape, rounded, divided, GRAD_UNCHANGED)
    del divided
    quantised = _clamped(tape, rounded)
    del rounded
    quantised = operator(tape, tape.value(shape, "fp32", "centred"), quantised, GRAD_UNCHANGED)
    quantised = _plus(tape, _times(tape, quantised, scale, groups), zero, groups)
    return cast(tape, quantised, dtype, "fake-quantised weight")


def _widened(tape: Tape, w: Value) -> Value:
    """``w.to(torch.float32)``, which no cache of autocast keeps."""
    return operator(tape, tape.value(w.shape, "fp32", "weight in fp32"), w, "gradient of the weight")


def _extreme(tape: Tape, x: Value, groups: tuple[int, ...]) -> Value:
    """``amax`` and ``amin`` over a group: backward counts the ties, and sends each its share."""
    shape = x.shape
    out = tape.value(groups, "fp32", "extremes")

    def run(grad: Storage) -> list[Storage | None]:
        mask = tape.new(shape, "bool", "ties")
        count = tape.new(groups, "int64", "number of ties")
        share = tape.new(groups, "fp32", "gradient / ties")
        del count
        result = tape.new(shape, "fp32", "ties * share")
        del mask, share
        return [result]

    return tape.record(out, (x,), run, saves=(x.storage, out.storage))


def _minus(tape: Tape, x: Value, y: Value, groups: tuple[int, ...]) -> Value:
    """``x - y``, where ``y`` has a number for each group."""
    negative = (x.shape, "fp32", "-gradient")
    if x.shape == groups:
        return operator(tape, tape.value(groups, "fp32", "difference"), (x, y), [GRAD_UNCHANGED, negative])
    reduced = (groups, "fp32", "sum over a group")
    out = tape.value(x.shape, "fp32", "difference")
    return operator(tape, out, (x, y), [GRAD_UNCHANGED, reduced], temporaries=[negative])


def _plus(tape: Tape, x: Value, y: Value, groups: tuple[int, ...]) -> Value:
    """``x + y``, where ``y`` has a number for each group."""
    reduced = GRAD_UNCHANGED if x.shape == groups else (groups, "fp32", "sum over a group")
    return operator(tape, tape.value(x.shape, "fp32", "sum"), (x, y), [GRAD_UNCHANGED, reduced])


def _by_number(tape: Tape, x: Value) -> Value:
    """Multiply or divide by a Python number."""
    return operator(tape, tape.value(x.shape, "fp32", "scale"), x, "gradient by a number")


def _floored(tape: Tape, x: Value) -> Value:
    """``clamp(x, min=eps)`` of the numbers of groups."""
    out, mask = tape.value(x.shape, "fp32", "clamped"), (x.shape, "bool", "x >= eps")
    return operator(tape, out, x, "clamp backward", saves=(x,), temporaries=[mask])


def _divided(tape: Tape, x: Value, y: Value, groups: tuple[int, ...]) -> Value:
    """``x / y``: the divisor's gradient is a product of three."""
    shape = x.shape

    def run(grad: Storage) -> list[Storage | None]:
        result = tape.new(shape, "fp32", "gradient / scale")
        quotient = tape.new(shape, "fp32", "x / scale")
        negative = tape.new(shape, "fp32", "-gradient")
        product = tape.new(shape, "fp32", "-gradient * x / scale")
        del quotient, negative
        whole = tape.new(shape, "fp32", "-gradient * x / scale ** 2")
        del product
        found = tape.new(groups, "fp32", "sum over a group")
        del whole
        return [result, found]

    return tape.record(tape.value(shape, "fp32", "quotient"), (x, y), run, saves=(x.storage, y.storage))


def _times(tape: Tape, x: Value, y: Value, groups: tuple[int, ...]) -> Value:
    """``x * y``, where ``y`` has a number for each group."""
    shape = x.shape

    def run(grad: Storage) -> list[Storage | None]:
        result = tape.new(shape, "fp32", "gradient * scale")
        product = tape.new(shape, "fp32", "gradient * x")
        found = tape.new(groups, "fp32", "sum over a group")
        del product
        return [result, found]

    return tape.record(tape.value(shape, "fp32", "product"), (x, y), run, saves=(x.storage, y.storage))
