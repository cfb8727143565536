"""Linear layers of quantization-aware training: products of fake-quantised inputs and weights.

Sources: torchao 0.18 ``quantization/qat/linear.py`` (FakeQuantizedLinear, as Int8DynActInt4WeightQATQuantizer makes
it), ``fake_quantizer.py`` (Int4WeightFakeQuantizer._bf16_activations_forward), ``quant_primitives.py``
(_fake_quantize_affine): inputs by token to int8, weights by group to int4, both through fp32 and back. Traced on the
CPU: the clamp keeps what it clamps in fp32, and the product the result; either way there are 14 bytes of an element at
once. Backward of a weight has four fp32 copies of it; scales want gradients, too. Scales and zero points are attributes
of the layer's quantizers, and stay when the graph has gone.
"""

from __future__ import annotations

from memcheck.autograd.engine import ctx_attribute
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.errors import UnsupportedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.autograd.context import Setting
    from memcheck.autograd.kernels import Weights


INT4 = "int8-int4"
"""The quantizer that takes inputs by token to int8, and weights through fp32 to int4."""


def fake(weights: Weights, setting: Setting, *, tied: bool) -> None:
    """Give a linear layer the fake quantizer of the plan's options, for its inputs and its weight.

    The layer stays as it is if groups do not divide a row of its weight. ``tied``: the weight is the embedding's, of
    which torchtune makes no linear layer.

    Raises:
        UnsupportedError: groups do not divide a row, and the quantizer is one that fails then.
    """
    kind, group_size = str(setting.option("quantizer")), int(str(setting.option("groupsize", 256)))
    inputs = weights.weight.shape[1]
    groups_fit = inputs % group_size == 0
    if kind == INT4 and not groups_fit:
        message = f"torchao's quantizer of weights views {inputs:,} inputs in groups of {group_size:,}, and stops"
        raise UnsupportedError(message, "choose a size that divides every row", "/training/options/groupsize")
    if kind == INT4 or (groups_fit and not tied):
        weights.fake_quantizer = (kind, group_size)


def quantised_operands(tape: Tape, x: Value, weights: Weights) -> tuple[Value, Value, tuple[Storage, ...]]:
    """Compute ``activation_fake_quantizer(x)`` and ``weight_fake_quantizer(weight)``; return them and all scales.

    Inputs are quantised by token to int8. A weight goes through its own quantizer, or by groups through fp32 to int4.

    Raises:
        UnsupportedError: the weight is fp32, a case that was never traced.
    """
    (kind, group_size), weight = weights.fake_quantizer, tape.parameter(weights.weight)
    if kind == INT4 and weight.dtype == "fp32":
        message = "quantization-aware training has no memory model on weights that are computed with in fp32"
        raise UnsupportedError(message, "hold them in bf16: precision: {params: bf16}", "/training/precision")
    tokens, weight_groups = x.numel // x.shape[-1], weight.shape[0] * (weight.shape[1] // group_size)
    scale_counts = (tokens,) if kind == INT4 else (tokens, weight_groups)
    scales = tuple(tape.new((2, count), "fp32", "scales and zero points") for count in scale_counts)
    narrow = _fake_quantised(tape, x, tokens)
    if kind == INT4:
        return narrow, fake_int4(tape, weight, group_size), scales
    return narrow, _fake_quantised(tape, weight, weight_groups), scales


def held_scales(tape: Tape, out: Value, scales: tuple[Storage, ...]) -> Value:
    """Return the product ``out`` with the scales attached to its graph: attributes of the layer's quantizers.

    They live until the graph is gone. ``scales``: scales and zero points in fp32, [2, groups] each.
    """
    if not out.needs_grad or not tape.grad_enabled:
        return out
    kept = tuple(storage for storage in scales if ctx_attribute(tape, storage) is not None)
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
    """Compute ``clamp(x, qmin, qmax)``. It saves x; backward makes two boolean masks of its shape."""
    masks = [(x.shape, "bool", label) for label in ("x >= low", "x <= high")]
    return operator(tape, tape.value(x.shape, x.dtype, "clamped"), x, "clamp backward", saves=(x,), temporaries=masks)


def fake_int4(tape: Tape, weight: Value, group_size: int) -> Value:
    """Compute ``weight_fake_quantizer(weight)``: a 16-bit weight through int4 and back, operator by operator in fp32.

    ``weight``: [outputs, inputs]. ``group_size``: inputs that share a scale and a zero point.
    Source: torchao 0.18 ``fake_quantizer.py``, Int4WeightFakeQuantizer._bf16_activations_forward.
    """
    shape, dtype = weight.shape, weight.dtype
    groups = (weight.numel // group_size,)
    wide = _widened(tape, weight)
    high, low = _extreme(tape, wide, groups), _extreme(tape, wide, groups)
    span = _minus(tape, high, low, groups)
    floored = _floored(tape, span)
    del span
    scale = _by_number(tape, floored)  # the span / 15
    del floored
    eight_scales = _by_number(tape, scale)
    zero = _plus(tape, low, eight_scales, groups)  # low + 8 * scale
    del eight_scales
    shifted = _minus(tape, wide, low, groups)
    divided = _divided(tape, shifted, scale, groups)
    del shifted
    rounded = tape.value(shape, "fp32", "rounded")
    rounded = operator(tape, rounded, divided, GRAD_UNCHANGED)
    del divided
    quantised = _clamped(tape, rounded)
    del rounded
    quantised = operator(tape, tape.value(shape, "fp32", "centred"), quantised, GRAD_UNCHANGED)
    quantised = _plus(tape, _times(tape, quantised, scale, groups), zero, groups)
    return cast(tape, quantised, dtype, "fake-quantised weight")


def _widened(tape: Tape, weight: Value) -> Value:
    """Compute ``weight.to(torch.float32)``. Autocast does not cache this copy."""
    return operator(tape, tape.value(weight.shape, "fp32", "weight in fp32"), weight, "gradient of the weight")


def _extreme(tape: Tape, x: Value, groups: tuple[int, ...]) -> Value:
    """Compute ``amax`` or ``amin`` of each group of a weight.

    Backward divides a group's gradient among all elements that equal its extreme (FunctionsManual.cpp,
    scale_grad_by_count). ``x``: the fp32 weight, [outputs, inputs]. ``groups``: the shape of the result.
    """
    shape = x.shape
    out = tape.value(groups, "fp32", "extremes")

    def run(grad: Storage) -> list[Storage | None]:
        """Return the gradient of x: each group's gradient, divided among the elements that equal its extreme."""
        mask = tape.new(shape, "bool", "ties")
        count = tape.new(groups, "int64", "number of ties")
        divided = tape.new(groups, "fp32", "gradient / ties")
        del count
        grad_x = tape.new(shape, "fp32", "ties * share")
        del mask, divided
        return [grad_x]

    return tape.record(out, (x,), run, saves=(x.storage, out.storage))


def _minus(tape: Tape, x: Value, per_group: Value, groups: tuple[int, ...]) -> Value:
    """Compute ``x - y`` in fp32, where ``per_group`` has one number per group: its shape is ``groups``.

    ``x`` has that shape as well, or that of the weight; then the gradient of ``per_group`` is a sum over each group.
    """
    negative = (x.shape, "fp32", "-gradient")
    if x.shape == groups:
        return operator(tape, tape.value(groups, "fp32", "difference"), (x, per_group), [GRAD_UNCHANGED, negative])
    reduced = (groups, "fp32", "sum over a group")
    out = tape.value(x.shape, "fp32", "difference")
    return operator(tape, out, (x, per_group), [GRAD_UNCHANGED, reduced], temporaries=[negative])


def _plus(tape: Tape, x: Value, per_group: Value, groups: tuple[int, ...]) -> Value:
    """Compute ``x + y`` in fp32, where ``per_group`` has one number per group: its shape is ``groups``.

    ``x`` has that shape as well, or that of the weight; then the gradient of ``per_group`` is a sum over each group.
    """
    reduced = GRAD_UNCHANGED if x.shape == groups else (groups, "fp32", "sum over a group")
    return operator(tape, tape.value(x.shape, "fp32", "sum"), (x, per_group), [GRAD_UNCHANGED, reduced])


def _by_number(tape: Tape, x: Value) -> Value:
    """Multiply or divide a tensor by a Python number: a new fp32 tensor in forward, and one in backward."""
    return operator(tape, tape.value(x.shape, "fp32", "scale"), x, "gradient by a number")


def _floored(tape: Tape, x: Value) -> Value:
    """Compute ``clamp(x, min=eps)`` of one fp32 number per group. It saves x; backward makes a boolean mask."""
    out, mask = tape.value(x.shape, "fp32", "clamped"), (x.shape, "bool", "x >= eps")
    return operator(tape, out, x, "clamp backward", saves=(x,), temporaries=[mask])


def _divided(tape: Tape, x: Value, scale: Value, groups: tuple[int, ...]) -> Value:
    """Compute ``x / scale`` in fp32, which saves both. ``x``: [outputs, inputs]; ``scale``: one number per group.

    Backward computes the gradient of the scale, ``sum(-grad * x / scale ** 2)`` over each group, in several steps, each
    of which makes a tensor of the shape of ``x`` (FunctionsManual.cpp, div_tensor_other_grad).
    """
    shape = x.shape

    def run(grad: Storage) -> list[Storage | None]:
        """Backward of a division: the gradient of x, and that of the scale, for which three more tensors of x's size
        exist.
        """
        grad_x = tape.new(shape, "fp32", "gradient / scale")
        quotient = tape.new(shape, "fp32", "x / scale")
        negative = tape.new(shape, "fp32", "-gradient")
        product = tape.new(shape, "fp32", "-gradient * x / scale")
        del quotient, negative
        by_element = tape.new(shape, "fp32", "-gradient * x / scale ** 2")
        del product
        grad_scale = tape.new(groups, "fp32", "sum over a group")
        del by_element
        return [grad_x, grad_scale]

    return tape.record(tape.value(shape, "fp32", "quotient"), (x, scale), run, saves=(x.storage, scale.storage))


def _times(tape: Tape, x: Value, scale: Value, groups: tuple[int, ...]) -> Value:
    """Compute ``x * scale`` in fp32, which saves both. ``x``: [outputs, inputs]; ``scale``: one number per group.

    The gradient of the scale is the sum of ``grad * x`` over each group.
    """
    shape = x.shape

    def run(grad: Storage) -> list[Storage | None]:
        """Backward of a product: the gradients of x and of the scale, which is a sum over each group."""
        grad_x = tape.new(shape, "fp32", "gradient * scale")
        by_element = tape.new(shape, "fp32", "gradient * x")
        grad_scale = tape.new(groups, "fp32", "sum over a group")
        del by_element
        return [grad_x, grad_scale]

    return tape.record(tape.value(shape, "fp32", "product"), (x, scale), run, saves=(x.storage, scale.storage))
