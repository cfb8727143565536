"""unsloth's products with adapters: one autograd Function for q, k and v, one for the feed-forward, one for o.

Source: unsloth 2026.8 ``kernels/fast_lora.py`` (LoRA_QKV, LoRA_MLP, LoRA_W), ``kernels/utils.py`` (matmul_lora,
fast_dequantize), ``kernels/swiglu.py``. They save their input, and gate and up. A forward dequantises into a buffer
that all layers share (``states.py``), a backward into a new tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import Weights
from memcheck.autograd.tensor import Node, Parameter, Storage, Tape, Value
from memcheck.frameworks.unsloth.styles import FormerStyle


def fits(layers: Sequence[Weights]) -> bool:
    """Whether the Functions run: each layer has a plain adapter without dropout, and no bias (``patch_peft_model``)."""
    return all(
        layer.lora_a is not None and layer.bias is None and layer.magnitude is None and not layer.dropout
        for layer in layers
    )


def _adapters(layers: Sequence[Weights]) -> list[Parameter]:
    return [each for layer in layers for each in (layer.lora_a, layer.lora_b) if each is not None]


def _narrow(tape: Tape, layers: Sequence[Weights], dtype: str, label: str) -> list[Storage]:
    """Allocate a tensor of each adapter matrix's shape, in the dtype of the product."""
    return [tape.new(each.shape, dtype, label) for each in _adapters(layers)]


def _forward(ctx: Context, x: Value, layer: Weights, label: str) -> Value:
    """Compute ``matmul_lora``: the product, to which the adapter's is added in place. ``x``: [tokens, inputs]."""
    tape = ctx.tape
    weight = _dequantized(tape, layer, x.dtype) if isinstance(ctx.setting.style, FormerStyle) else None
    out = tape.value((*x.shape[:-1], layer.weight.shape[0]), x.dtype, label)
    del weight
    for each in (layer.lora_a, layer.lora_b):
        if each is not None:
            cast = tape.new(each.shape, x.dtype, label + " adapter, cast")
            del cast
    return out


def _dequantized(tape: Tape, layer: Weights, dtype: str) -> Storage | None:
    """Allocate the whole base weight in the product's dtype; None where it is stored in that dtype."""
    return tape.new(layer.weight.shape, dtype, "dequantized weight") if layer.quantized else None


def _into_input(tape: Tape, x: Value, layers: Sequence[Weights]) -> None:
    """Compute the input's gradient, product by product, in the storage of the input (``out = X``)."""
    for layer in layers:
        weight = _dequantized(tape, layer, x.dtype)
        del weight


def qkv(ctx: Context, x: Value, layers: Sequence[Weights]) -> list[Value]:
    """Compute LoRA_QKV: q, k and v, each [tokens, outputs], of ``x`` [tokens, hidden]. It saves only ``x``.

    ``layers``: the three matrices with their adapters. Backward runs once all three gradients exist, and writes the
    input's gradient over the saved input.
    """
    tape = ctx.tape
    outputs = [
        _forward(ctx, x, layer, label) for layer, label in zip(layers, ("q_proj", "k_proj", "v_proj"), strict=True)
    ]
    storage, bare, dtype = x.storage, Value(None, x.shape, x.dtype), x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: cast the adapters, allocate their gradients, and write the input's gradient into the saved
        input.
        """
        casts = _narrow(tape, layers, dtype, "adapter, cast")
        gradients = _narrow(tape, layers, dtype, "adapter gradient")
        _into_input(tape, bare, layers)
        del casts
        return [storage if storage is not None else grad, *gradients]

    inputs = (x, *(tape.parameter(each) for each in _adapters(layers)))
    carrier = tape.record(Value(None, (), dtype), inputs, run, saves=(storage,), validated=True)
    if isinstance(carrier.origin, Node):
        carrier.origin.view_gradients = []
        for out in outputs:
            tape.record(out, (carrier,), lambda grad: [grad])
    return outputs


def swiglu(ctx: Context, x: Value, layers: Sequence[Weights]) -> Value:
    """Compute LoRA_MLP of ``x`` [tokens, hidden]: it saves ``x``, and gate and up, [tokens, width] each.

    ``layers``: gate, up and down with their adapters. Backward allocates one more [tokens, width], writes over gate and
    up, and writes the input's gradient over the saved input.
    """
    tape = ctx.tape
    gate, up = (
        _forward(ctx, x, layer, label) for layer, label in zip(layers[:2], ("gate_proj", "up_proj"), strict=True)
    )
    inner = tape.new(gate.shape, x.dtype, "swiglu")
    out = tape.value((*x.shape[:-1], layers[2].weight.shape[0]), x.dtype, "down_proj")
    del inner
    storage, bare = x.storage, Value(None, x.shape, x.dtype)
    width, dtype = gate.shape, x.dtype
    former = isinstance(ctx.setting.style, FormerStyle)

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: allocate the gradients of the activation and of the adapters; write the input's over the input."""
        casts = _narrow(tape, layers, dtype, "adapter, cast")
        weight = _dequantized(tape, layers[2], dtype) if former else None
        inner_gradient = tape.new(width, dtype, "gradient of swiglu")
        del weight
        gradients = _narrow(tape, layers, dtype, "adapter gradient")
        _into_input(tape, bare, layers[:2])
        del casts, inner_gradient
        return [storage if storage is not None else grad, *gradients]

    inputs = (x, *(tape.parameter(each) for each in _adapters(layers)))
    return tape.record(out, inputs, run, saves=(storage, gate.storage, up.storage), validated=True)


def output(ctx: Context, x: Value, layer: Weights) -> Value:
    """Compute LoRA_W, the output projection of attention: it saves ``x`` [tokens, inputs].

    ``layer``: the matrix with its adapter.
    """
    tape = ctx.tape
    out = _forward(ctx, x, layer, "o_proj")
    shape, dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: allocate the adapters' gradients, dequantise the weight, and allocate the input's gradient."""
        del grad
        casts = _narrow(tape, (layer,), dtype, "adapter, cast")
        gradients = _narrow(tape, (layer,), dtype, "adapter gradient")
        weight = _dequantized(tape, layer, dtype)
        input_gradient = tape.new(shape, dtype, "o_proj dX")
        del casts, weight
        return [input_gradient, *gradients]

    inputs = (x, *(tape.parameter(each) for each in _adapters((layer,))))
    return tape.record(out, inputs, run, saves=(x.storage,), validated=True)
