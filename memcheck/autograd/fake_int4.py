"""A weight in four bits by groups, and back: what quantization-aware training multiplies by, in fp32 operators.

Source: torchao 0.18 ``quantization/qat/fake_quantizer.py`` (Int4WeightFakeQuantizer._bf16_activations_forward),
operator by operator. Backward has four fp32 copies of the weight; scales want gradients, too. Traced on the CPU.
"""

from __future__ import annotations

from memcheck.autograd.elementwise import cast
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.tensor import Storage, Tape, Value

Gradients = list[Storage | None]


def fake_int4(tape: Tape, w: Value, group: int) -> Value:
    """``weight_fake_quantizer(weight)``; shape [outputs, inputs] in 16 bits, in groups of ``group`` inputs."""
    shape, dtype = w.shape, w.dtype
    groups = (w.numel // group,)
    wide = _widened(tape, w)
    high, low = _extreme(tape, wide, groups), _extreme(tape, wide, groups)
    spread = _minus(tape, high, low, groups)
    floored = _floored(tape, spread, groups)
    del spread
    scale = _by_number(tape, floored, groups)
    del floored
    eighth = _by_number(tape, scale, groups)
    zero = _plus(tape, low, eighth, groups)
    del eighth
    moved = _minus(tape, wide, low, groups)
    divided = _divided(tape, moved, scale, groups)
    del moved
    rounded = tape.value(shape, "fp32", "rounded")
    rounded = operator(tape, rounded, divided, PASSED)
    del divided
    fq = _clamped(tape, rounded)
    del rounded
    fq = operator(tape, tape.value(shape, "fp32", "centred"), fq, PASSED)
    fq = _plus(tape, _times(tape, fq, scale, groups), zero, groups)
    return cast(tape, fq, dtype, "fake-quantised weight")


def _widened(tape: Tape, w: Value) -> Value:
    """``w.to(torch.float32)``, which no cache of autocast keeps."""
    shape = w.shape
    return operator(tape, tape.value(shape, "fp32", "weight in fp32"), w, "gradient of the weight")


def _reduced(tape: Tape, groups: tuple[int, ...]) -> Storage:
    return tape.new(groups, "fp32", "sum over a group")


def _extreme(tape: Tape, x: Value, groups: tuple[int, ...]) -> Value:
    """``amax`` and ``amin`` over a group: backward counts the ties, and sends each its share."""
    shape = x.shape
    out = tape.value(groups, "fp32", "extremes")

    def run(grad: Storage) -> Gradients:
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
    shape = x.shape

    def run(grad: Storage) -> Gradients:
        negative = tape.new(shape, "fp32", "-gradient")
        return [grad, negative if shape == groups else _reduced(tape, groups)]

    return tape.record(tape.value(shape, "fp32", "difference"), (x, y), run)


def _plus(tape: Tape, x: Value, y: Value, groups: tuple[int, ...]) -> Value:
    """``x + y``, where ``y`` has a number for each group."""
    whole = x.shape == groups

    def run(grad: Storage) -> Gradients:
        return [grad, grad if whole else _reduced(tape, groups)]

    return tape.record(tape.value(x.shape, "fp32", "sum"), (x, y), run)


def _by_number(tape: Tape, x: Value, groups: tuple[int, ...]) -> Value:
    """A product with a number, or a quotient."""
    return operator(tape, tape.value(groups, "fp32", "scale"), x, (groups, "fp32", "gradient by a number"))


def _floored(tape: Tape, x: Value, groups: tuple[int, ...]) -> Value:
    """``clamp(x, min=eps)`` of the numbers of groups."""
    return operator(
        tape,
        tape.value(groups, "fp32", "clamped"),
        x,
        (groups, "fp32", "clamp backward"),
        saves=(x,),
        temporaries=[(groups, "bool", "x >= eps")],
    )


def _clamped(tape: Tape, x: Value) -> Value:
    """``clamp(qmin, qmax)``: two masks, and what they choose."""
    shape = x.shape
    return operator(
        tape,
        tape.value(shape, "fp32", "clamped"),
        x,
        (shape, "fp32", "clamp backward"),
        saves=(x,),
        temporaries=[(shape, "bool", "x >= low"), (shape, "bool", "x <= high")],
    )


def _divided(tape: Tape, x: Value, y: Value, groups: tuple[int, ...]) -> Value:
    """``x / y``: the divisor's gradient is a product of three."""
    shape = x.shape

    def run(grad: Storage) -> Gradients:
        result = tape.new(shape, "fp32", "gradient / scale")
        quotient = tape.new(shape, "fp32", "x / scale")
        negative = tape.new(shape, "fp32", "-gradient")
        product = tape.new(shape, "fp32", "-gradient * x / scale")
        del quotient, negative
        whole = tape.new(shape, "fp32", "-gradient * x / scale ** 2")
        del product
        found = _reduced(tape, groups)
        del whole
        return [result, found]

    return tape.record(tape.value(shape, "fp32", "quotient"), (x, y), run, saves=(x.storage, y.storage))


def _times(tape: Tape, x: Value, y: Value, groups: tuple[int, ...]) -> Value:
    """``x * y``, where ``y`` has a number for each group."""
    shape = x.shape

    def run(grad: Storage) -> Gradients:
        result = tape.new(shape, "fp32", "gradient * scale")
        product = tape.new(shape, "fp32", "gradient * x")
        found = _reduced(tape, groups)
        del product
        return [result, found]

    return tape.record(tape.value(shape, "fp32", "product"), (x, y), run, saves=(x.storage, y.storage))
