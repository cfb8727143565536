"""Products with frozen weights that are stored quantised, and adapters over them.

Sources: bitsandbytes 0.50 ``autograd/_functions.py`` (MatMul4Bit, MatMul8bitLt) and ``backends/cuda/ops.py``;
gptqmodel 7.7 ``nn_modules/qlinear/__init__.py`` (dequantize_weight), ``torch.py``, ``gemm_awq.py``; transformers 5.23
``integrations/finegrained_fp8.py`` (FP8LinearFunction); peft 0.21 ``tuners/lora/bnb.py``, ``gptq.py``, ``awq.py``.
"""

from __future__ import annotations

from memcheck.autograd.engine import ctx_attribute, with_ctx_attributes
from memcheck.autograd.operator import cast, operator
from memcheck.autograd.tensor import Storage, Tape, Value, ceil_div
from memcheck.autograd.weight_formats import FOUR_BIT_BLOCK, FP8_BLOCK, GPTQ_4BIT, Awq, Fp8, Gptq, Int8

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from memcheck.autograd.kernels import Weights

    Product = Callable[[Tape, Value, Weights, str], Value]


def product_of(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Compute the product of an activation and a frozen weight that is stored quantised, as its library does it.

    ``x``: [..., inputs]. ``weights``: of a layer, [outputs, inputs]. Returns [..., outputs] in the dtype of x.
    """
    product = PRODUCTS.get(type(weights.peft_base_format))
    if product is not None:
        return product(tape, x, weights, label)
    source = x.dtype
    if weights.compute_dtype is not None:
        # Linear4bit.forward: `x.to(compute_dtype)`, and `.to(inp_dtype)` of the output
        x = cast(tape, x, weights.compute_dtype, "4-bit input")
        return cast(tape, _product_4bit(tape, x, weights, label), source, "4-bit output")
    return _product_4bit(tape, x, weights, label)


def _product_4bit(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Run bitsandbytes' MatMul4Bit in the dtype of its input.

    Forward and backward each dequantise the whole weight for a moment. Backward computes the input gradient alone,
    since the weight is frozen. Old versions save the input, too. The constants (``absmax``, one per 64 elements)
    may be quantised themselves; they are restored to fp32 first.
    """
    out_shape = (*x.shape[:-1], weights.weight.shape[0])
    x_shape, x_dtype = x.shape, x.dtype
    w_shape, stored = weights.weight.shape, weights.dequantized_dtype
    is_nested = weights.peft_base_format is not None and weights.peft_base_format.nested
    constants = ceil_div(w_shape[0] * w_shape[1], FOUR_BIT_BLOCK) if is_nested else 0
    absmax = [tape.new((constants,), "fp32", "4-bit constants") for _ in range(2)] if constants else []
    workspace = _dequantized(tape, w_shape, x_dtype, stored)
    out = tape.value(out_shape, x_dtype, label)
    del workspace, absmax
    kept = _attribute(tape, x) if weights.keeps_input else None

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dequantise the weight again, and return the gradient of the input."""
        absmax = tape.new((constants,), "fp32", "4-bit constants") if constants else None
        workspace = _dequantized(tape, w_shape, x_dtype, stored)
        del absmax
        grad_x = tape.new(x_shape, x_dtype, label + " dX")
        del workspace
        return [grad_x]

    return tape.record(out, (x,), with_ctx_attributes(run, kept))


def _attribute(tape: Tape, x: Value) -> Storage | None:
    """Return the storage of an input that the Function keeps as an attribute of ctx; None without a graph."""
    return ctx_attribute(tape, x.storage) if x.needs_grad and x.storage is not None else None


def _dequantized(tape: Tape, shape: tuple[int, ...], dtype: str, stored: str | None) -> Storage:
    """Allocate a dequantised weight, ``dequantize_4bit(B).to(A.dtype)``.

    ``stored``: the dtype that dequantisation gives, if it is another one and has to be cast; None: ``dtype``.
    """
    if stored is None or stored == dtype:
        return tape.new(shape, dtype, "dequantized weight")
    first = tape.new(shape, stored, "dequantized weight")
    cast_copy = tape.new(shape, dtype, "dequantized weight, cast")
    del first
    return cast_copy


def _int8(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Run bitsandbytes' MatMul8bitLt (LLM.int8), taking no column of the input as an outlier.

    The input is quantised by rows. The product is made in int32, then cast to fp16 and to the input's dtype. The input
    is kept as an attribute of ctx until the graph is gone.
    """
    x_shape, x_dtype, w_shape = x.shape, x.dtype, weights.weight.shape
    rows, out_shape = (*x_shape[:-1], 1), (*x_shape[:-1], w_shape[0])
    x_fp16 = tape.new(x_shape, "fp16", "int8 input, cast") if x_dtype != "fp16" else None
    stats = tape.new(rows, "fp32", "int8 row scales")
    quantised = tape.new(x_shape, "int8", "int8 input")
    magnitude = tape.new(x_shape, "fp16", "|int8 input|")
    outliers = tape.new(x_shape, "bool", "int8 outliers")
    del magnitude, x_fp16, outliers
    product = tape.new(out_shape, "int32", label + " int32")
    narrow = tape.value(out_shape, "fp16", label)
    out = narrow if x_dtype == "fp16" else tape.value(out_shape, x_dtype, label)
    del narrow, product, quantised, stats
    out = Value(out.storage, out_shape, x_dtype)
    dequantised_weight = (w_shape, x_dtype, "dequantized weight")
    return operator(tape, out, x, label + " dX", temporaries=[dequantised_weight], attributes=_attribute(tape, x))


def _gptq(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Run gptqmodel's TorchLinear in training.

    It dequantises the weight operator by operator, ``scales[g_idx] * (codes - zeros[g_idx])``. ``torch.matmul`` then
    saves the dequantised weight for the input's gradient.
    """
    x_shape, x_dtype, w_shape = x.shape, x.dtype, weights.weight.shape
    inputs = w_shape[1]
    codes_dtype = "int8" if weights.peft_base_format == GPTQ_4BIT else "int32"
    shifted = tape.new(w_shape, "int32", "unpacked codes")
    narrow = tape.new(w_shape, codes_dtype, "codes")
    del shifted
    masked = tape.new(w_shape, codes_dtype, "masked codes")
    del narrow
    index = tape.new((inputs,), "int64", "g_idx.long()")
    scales = tape.new(w_shape, "fp16", "scales of each weight")
    zeros = tape.new(w_shape, codes_dtype, "zeros of each weight")
    difference = tape.new(w_shape, codes_dtype, "codes - zeros")
    del zeros, index
    weight = tape.new(w_shape, "fp16", "dequantized weight")
    del masked, scales, difference
    if x_dtype != "fp16":
        weight = tape.new(w_shape, x_dtype, "dequantized weight, cast")
    out_shape = (*x_shape[:-1], w_shape[0])
    out = tape.value(out_shape, x_dtype, label)
    kept = weight if x.needs_grad else None
    del weight
    return operator(tape, out, x, label + " dX", saves=(kept,))


def _awq(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Run gptqmodel's AwqGemmFn, which computes in 16 bits and dequantises the weight in forward and in backward.

    In forward it does so beyond 1024 tokens, the case that is modelled.
    """
    source = x.dtype
    x = cast(tape, x, "fp16", "awq input") if source not in ("fp16", "bf16") else x
    x_shape, x_dtype, w_shape = x.shape, x.dtype, weights.weight.shape
    out_shape = (*x_shape[:-1], w_shape[0])
    workspace = _dequantized(tape, w_shape, x_dtype, None)
    out = tape.value(out_shape, x_dtype, label)
    del workspace

    out = operator(tape, out, x, label + " dX", temporaries=[(w_shape, x_dtype, "dequantized weight")])
    return cast(tape, out, source, "awq output")


def _fp8(tape: Tape, x: Value, weights: Weights, label: str) -> Value:
    """Run transformers' FP8LinearFunction: forward quantises the input by groups, backward dequantises the weight."""
    x_shape, x_dtype, w_shape = x.shape, x.dtype, weights.weight.shape
    groups = (*x_shape[:-1], ceil_div(x_shape[-1], FP8_BLOCK))
    quantised, scales = tape.new(x_shape, "fp8", "fp8 input"), tape.new(groups, "fp32", "fp8 input scales")
    out = tape.value((*x_shape[:-1], w_shape[0]), x_dtype, label)
    del quantised, scales
    return operator(tape, out, x, label + " dX", temporaries=[(w_shape, x_dtype, "dequantized weight")])


PRODUCTS: dict[type, Product] = {Int8: _int8, Gptq: _gptq, Awq: _awq, Fp8: _fp8}
"""The product over a base in a format that is not of 4-bit weights, by the format's type."""
