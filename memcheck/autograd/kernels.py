"""Matrix products and attention kernels: linear layers, adapters, embedding tables, rotations, ring attention.

A linear layer keeps its input when its weight is trained, and its weight (counted elsewhere, or autocast's copy of it)
when its input wants a gradient (derivatives.yaml: mm, addmm). LoRA follows peft 0.21's Linear.forward.

DoRA: ``result + (m / |W + BA| - 1) * W x + (m / |W + BA|) * BA x * scaling``.

Source: peft 0.21 tuners/lora/variants.py (DoraLinearVariant.forward) and tuners/lora/dora.py (DoraLinearLayer).
"""

from __future__ import annotations

from memcheck.autograd.operator import (
    Gradient,
    add,
    cast,
    cast_weight,
    copy,
    dropout,
    factors,
    mul,
    operator,
    scale,
    unary,
)
from memcheck.autograd.tensor import SAVED_WEIGHT, Parameter, Storage, Tape, Value, promote
from memcheck.autograd.weight_formats import Awq, FourBits, Int8, WeightFormat


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
        """Set weight [outputs, inputs], bias [outputs], and ``lora``: A [rank, inputs] and B [outputs, rank]."""
        self.weight = weight
        self.bias = bias
        self.lora_a = lora[0] if lora else None
        self.lora_b = lora[1] if lora else None
        self.quantized = quantized
        """The weight is stored quantised, and is dequantised for each product."""
        self.peft_base_format: WeightFormat | None = None
        """How the weight is stored where peft adapts another library's layer; None: the framework has layers of its
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
    if isinstance(weights.peft_base_format, (FourBits, Int8, Awq)):  # peft has a LoRA layer of its own for these
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
    x_needs_grad, weight_needs_grad = x.needs_grad, weight.needs_grad
    saved_x = x if weight_needs_grad or (x_needs_grad and tape.saves_linear_inputs) else None
    weight_or_placeholder = weight.storage or SAVED_WEIGHT  # a parameter's storage is counted with the states
    saved_weight = weight_or_placeholder if x_needs_grad else None
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
    dropped = dropout(tape, x, weights.dropout)
    # peft hands the base result on without dropout; with it, the base product of the dropped input is made again
    base: Value | None = result if weights.dropout == 0.0 else None
    del x
    lora_weight, base_weight, norm = _weight_norm(tape, weights, dropped, label)
    ratio = mul(tape, tape.parameter(magnitude), norm, "magnitude / norm")
    low = matmul(tape, dropped, down, label + ".lora_A")
    adapted = matmul(tape, low, up, label + ".lora_B")
    del low
    if base is None:  # F.linear(x, weight): keeps this copy of the weight
        base = product(tape, dropped, base_weight, label)
    elif weights.bias is not None:
        bias = Value(tape.new((1, base.shape[-1]), weights.bias.dtype, "bias"), base.shape, base.dtype)
        base = add(tape, base, bias, "- bias")
        del bias
    first = mul(tape, ratio, base, "(ratio - 1) * base")
    del base
    second = scale(tape, mul(tape, ratio, adapted, "ratio * adapted"), "lora scaling")
    del adapted
    extra = add(tape, first, second, "dora")
    del first, second, lora_weight, base_weight  # variables of DoraLinearLayer.forward
    return add(tape, result, extra, "lora sum")


def _weight_norm(tape: Tape, weights: Weights, dropped: Value, label: str) -> tuple[Value, Value, Value]:
    """Compute the norm of each row of ``W + BA``; return ``BA``, ``W`` and the norm [1, outputs].

    ``dropped``: the adapter's input, in whose dtype all three are. Source: peft DoraLinearLayer.get_weight_norm.
    """
    down, up = weights.lora_a, weights.lora_b
    if down is None or up is None:
        raise TypeError
    outputs, inputs = weights.weight.shape
    eye = tape.value((inputs, inputs), down.dtype, "identity")
    row = matmul(tape, eye, down, label + ".lora_A of the identity")
    merged = matmul(tape, row, up, label + ".lora_B of the identity")
    del eye, row  # `x_eye` is a variable of get_lora_weight; the product may have kept autocast's copy of it instead
    lora_weight = cast(tape, merged, dropped.dtype, "lora weight")
    del merged
    base_weight = _in_dtype_of(tape, weights, dropped)
    scaled = tape.new((outputs, inputs), dropped.dtype, "scaled lora weight")
    total = tape.new((outputs, inputs), dropped.dtype, "weight + lora weight")
    norm = tape.value((1, outputs), dropped.dtype, "weight norm")
    del scaled, total
    return lora_weight, base_weight, norm


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
    if isinstance(weights.peft_base_format, FourBits):
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
    if isinstance(weights.peft_base_format, Awq):
        output = cast(tape, output, source, "lora output") if converts else output
        output = scale(tape, output, "lora scaling")
    else:
        output = scale(tape, output, "lora scaling")
        output = cast(tape, output, source, "lora output") if converts else output
    return add(tape, result, output, "lora sum")


Copied = tuple[bool, bool, bool]
"""Whether q, k and v, in this order, are copied."""

MASK_ALIGNMENT = 8
"""Elements to a multiple of which the memory-efficient kernel wants a mask's rows padded."""


def flash(
    tape: Tape,
    q: Value,
    k: Value,
    v: Value,
    v_dim: int,
    *,
    label: str = "flash attention",
    extra: Storage | None = None,
    ring: int = 1,
) -> Value:
    """Run FlashAttention-2 (aten _scaled_dot_product_flash_attention), which saves q, k, v, output and fp32 logsumexp.

    ``q``, ``k``, ``v``: [batch, heads, sequence, head_dim]; the result has ``v_dim`` elements per head. Grouped heads
    are not repeated. ``extra``: the mask, which the memory-efficient kernel saves with the same five tensors. ``ring``:
    ranks of a context-parallel group, which send keys and values in a ring.
    """
    out_shape = (*q.shape[:-1], v_dim)
    ring_buffers = None
    if ring > 1:
        ring_buffers = forward_buffers(tape, q, k, v, ring, v_dim)
    out = Value(tape.output("attention", out_shape, q.dtype, label), out_shape, q.dtype)
    lse = tape.output("attention", q.shape[:-1], "fp32", label + " logsumexp")
    del ring_buffers
    saved = (q.storage, k.storage, v.storage, out.storage, lse, extra)
    # without storages: the backward below must not keep q, k and v alive
    bare_q, bare_k, bare_v = (Value(None, t.shape, t.dtype) for t in (q, k, v))
    grad_specs = [(t.shape, t.dtype) if t.needs_grad else None for t in (q, k, v)]

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: allocate dQ, dK and dV, with the buffers of a ring between ranks."""
        ring_buffers = backward_buffers(tape, bare_q, bare_k, bare_v, ring) if ring > 1 else None
        gradients = [tape.new(*spec, label + " backward") if spec else None for spec in grad_specs]
        del ring_buffers
        return gradients

    return tape.record(out, (q, k, v), run, saves=saved)


def batched(
    tape: Tape, a: Value, b: Value, shape: tuple[int, ...], label: str, copied: tuple[bool, bool] = (False, False)
) -> Value:
    """Compute ``torch.matmul`` of two activations (bmm), which saves both operands after autocast's casts.

    ``shape``: of the result. ``copied``: whether matmul copies ``a``, and ``b``, to fold batch and heads into one
    dimension. A copy has no other reference.
    """
    if tape.autocast:
        b = cast(tape, b, tape.autocast)
        a = cast(tape, a, tape.autocast)
    if copied[0]:
        a = copy(tape, a, "contiguous")
    if copied[1]:
        b = copy(tape, b, "contiguous")
    out = Value(tape.output("bmm", shape, a.dtype, label), shape, a.dtype)
    return operator(tape, out, (a, b), label + " backward", saves=factors(a, b))


def softmax(tape: Tape, x: Value, dtype: str | None = None) -> Value:
    """Compute ``softmax(x, dtype=...)``, which saves its result. ``dtype``: x is cast to it first; None: no cast."""
    wide = cast(tape, x, dtype) if dtype else x
    del x
    return unary(tape, wide, "softmax")


def forward_buffers(tape: Tape, q: Value, k: Value, v: Value, ranks: int, v_dim: int) -> list[Storage]:
    """Allocate the buffers of ring attention's forward, without its output.

    They are contiguous keys and values, their concatenation, the keys and values of all ranks, and two fp32 outputs
    that are merged. ``ranks``: ranks of the ring. ``v_dim``: width of a head's values.
    """
    buffers = _keys_and_values(tape, k, v, ranks)
    for _ in range(2):
        buffers.append(tape.new((*q.shape[:-1], v_dim), "fp32", "merged output"))
    return buffers


def backward_buffers(tape: Tape, q: Value, k: Value, v: Value, ranks: int) -> list[Storage]:
    """Allocate the buffers of ring attention's backward, without the gradients that it returns.

    They are the keys and values of all ranks, fp32 gradients summed over the ring's steps and of the current step, and
    two fp32 buffers of gradients of keys and values that travel around the ring. ``ranks``: ranks of the ring.
    """
    buffers = _keys_and_values(tape, k, v, ranks)
    for what in ("summed", "this step's"):
        buffers.extend(tape.new(t.shape, "fp32", f"{what} gradient") for t in (q, k, v))
    buffers.extend(tape.new((2, *k.shape), "fp32", "travelling gradients") for _ in range(2))
    return buffers


def _keys_and_values(tape: Tape, k: Value, v: Value, ranks: int) -> list[Storage]:
    """Allocate contiguous local keys and values, both in one tensor, and those gathered from all ``ranks`` ranks."""
    local = [tape.new(t.shape, t.dtype, "contiguous keys and values") for t in (k, v)]
    both = k.numel + v.numel
    joined = tape.new((both,), k.dtype, "keys and values")
    return [*local, joined, tape.new((both * ranks,), k.dtype, "gathered keys and values")]


Pair = tuple[Value, Value]
"""Queries and keys."""


def rotate_half(tape: Tape, x: Value, stream: str, tables: tuple[Storage, ...] = (), *, holds: bool = False) -> Value:
    """Apply the rotary embedding, x * cos + rotated halves * sin, to queries or keys.

    ``x``: [batch, heads, sequence, rotated dim]; every temporary has its shape. ``stream``: the dtype of cos and sin.
    ``tables``: cos and sin where the graph saves them because the layer made its own. ``holds``: a variable refers to
    the rotated halves until the sum exists. Source: transformers' apply_rotary_pos_emb.
    """
    shape, dtype = x.shape, x.dtype
    half = (*shape[:-1], shape[-1] // 2)
    wide = promote(dtype, stream)
    needs_grad = x.needs_grad
    with_cos = tape.value(shape, wide, "q * cos")
    negated = tape.value(half, dtype, "neg")
    rotated = tape.value(shape, dtype, "rotate half")
    del negated
    with_sin = tape.value(shape, wide, "rotate half * sin")
    rotated_variable = rotated if holds else None
    del rotated
    out = tape.value(shape, wide, "rotary embedding")
    del with_cos, with_sin, rotated_variable

    def run(grad: Storage) -> list[Storage | None]:
        """Return the gradient of x: that through sin, rotated back half by half, plus that through cos."""
        through_sin = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_sin = tape.new(shape, dtype, "to backward")
        halves = tape.new(half, dtype, "neg backward")
        first = tape.new(shape, dtype, "slice backward")
        del halves
        second = tape.new(shape, dtype, "slice backward")
        del through_sin
        summed = tape.new(shape, dtype, "add gradients") if tape.dtensor_gradients else first
        del first, second
        through_cos = tape.new(shape, wide, "mul backward")
        if wide != dtype:
            through_cos = tape.new(shape, dtype, "to backward")
        total = tape.new(shape, dtype, "add gradients") if tape.dtensor_gradients else through_cos
        del summed, through_cos
        return [total if needs_grad else None]

    return tape.record(out, (x,), run, saves=tables)


def rotate_complex(tape: Tape, q: Value, k: Value, rows: Storage | None = None) -> Pair:
    """Apply the rotary embedding with complex numbers, as DeepSeek V2, Llama 4 and torchtitan do.

    fp32 copies of queries and keys are viewed as complex numbers, multiplied by the table and cast back. ``rows``: rows
    of the table that the graph saves because the layer picked its own. Each backward makes their conjugates.
    """
    wide_q, wide_k = cast(tape, q, "fp32"), cast(tape, k, "fp32")
    rotated_q, rotated_k = _times_complex(tape, wide_q, rows), _times_complex(tape, wide_k, rows)
    return cast(tape, rotated_q, q.dtype), cast(tape, rotated_k, k.dtype)


def _times_complex(tape: Tape, wide: Value, rows: Storage | None) -> Value:
    """Multiply the fp32 tensor ``wide`` by the complex table; backward clones the conjugates of its ``rows``."""
    shape = wide.shape
    rotated = tape.value(shape, "fp32", "x * freqs_cis")
    conjugates = rows.shape if rows is not None else None
    return operator(
        tape,
        rotated,
        wide,
        (shape, "fp32", "mul backward"),
        saves=(rows,),
        temporaries=[(conjugates or shape, "fp32", "clone")],
    )
