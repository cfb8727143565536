"""LoRA on tensors that are no linear layers: peft's ParamWrapper around stacked experts and routers.

Source: peft 0.21 tuners/lora/layer.py (ParamWrapper, _LoraFactorsProxy) and utils/transformers_weight_conversion.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Adapter, Context
from memcheck.autograd.operator import convert_weight
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.frameworks.stacked_adapters import adapted_tensors
from memcheck.models.types import Moe, ParameterTensor


def merged_weight(ctx: Context, moe: Moe, tensor: ParameterTensor, base: Value) -> Value:
    """Merge a LoRA adapter into a weight: ``base + scaling * B @ A`` as a new tensor, a copy of all
    experts per layer.
    """
    factors = factors_of(ctx, moe, tensor, base.dtype)
    return base if factors is None else folded(ctx.tape, base, factors)


def factors_of(ctx: Context, moe: Moe, tensor: ParameterTensor, dtype: str) -> tuple[Value, Value] | None:
    """Return both LoRA matrices of a tensor, B and A, in the dtype of its weight, or None if it has no adapter.

    peft's parametrization holds them as long as it is registered (``_LoraFactorsProxy``).
    """
    adapter = ctx.setting.adapter
    factors = next((pair for pair in adapted_tensors(adapter, moe) if pair.name == tensor.name), None)
    if factors is None or adapter is None:
        return None
    tape = ctx.tape
    lhs, rhs = (
        convert_weight(tape, tape.parameter(ctx.register(_factor(ctx, factors.name + end, size, adapter))), dtype)
        for end, size in ((".lora_B", factors.up), (".lora_A", factors.down))
    )
    return lhs, rhs


def folded(tape: Tape, base: Value, factors: tuple[Value, Value]) -> Value:
    """Compute ``torch.baddbmm(base, lhs, rhs)``: a new tensor of the weight's size. ``factors``: B and A."""
    lhs, rhs = factors
    shape, dtype = base.shape, base.dtype
    out = tape.value(shape, dtype, "weight with adapter")
    shapes = (lhs.shape, rhs.shape)

    def baddbmm_backward(grad: Storage) -> list[Storage | None]:
        """Make each factor's gradient: a product of both shapes (``bmm``), then a copy scaled by ``alpha``."""
        grads: list[Storage | None] = []
        for size in shapes:
            product = tape.new(size, dtype, "bmm")
            grads.append(tape.new(size, dtype, "scaled factor gradient"))
            del product
        return grads

    return tape.record(out, (lhs, rhs), baddbmm_backward, saves=(lhs.storage, rhs.storage))


def _factor(ctx: Context, name: str, shape: tuple[int, ...], adapter: Adapter) -> Parameter:
    return Parameter(name, shape, adapter.module_dtype, requires_grad=True, has_grad=ctx.setting.has_grad)
