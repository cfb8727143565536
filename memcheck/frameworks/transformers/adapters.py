"""LoRA on tensors that are no linear layers: peft's ParamWrapper around stacked experts and routers.

Source: peft 0.21 tuners/lora/layer.py (ParamWrapper, _LoraFactorsProxy) and utils/transformers_weight_conversion.py.

LoRA on the experts of a rank, as NeMo AutoModel has it: grouped products in addition to those of the experts.

Source: NVIDIA-NeMo/Automodel 36044ad3 ``components/_peft/lora_experts.py`` (GroupedExpertsLoRA,
GroupedExpertsDeepEPLoRA). Both matrices of every expert have factors A and B, which lie where the expert lies. What
they yield is scaled and added, each time into a new tensor; nothing is merged into the experts. ``torch._grouped_mm``
wants rows of 16 bytes, to which narrower ranks are padded; ``grouped_gemm`` takes them as they are.
"""

from __future__ import annotations

from memcheck.autograd.context import Adapter, Context
from memcheck.autograd.operator import add, convert_weight, grouped_mm, operator, scale
from memcheck.autograd.tensor import ITEM_BYTES, Parameter, Storage, Tape, Value, round_up
from memcheck.frameworks.stacked_adapters import adapted_tensors, factors_here
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
        for end, size in ((".lora_B", factors.up_shape), (".lora_A", factors.down_shape))
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


ROW_BYTES = 16
"""What a row of ``torch._grouped_mm``'s operands is a multiple of."""


Operands = tuple[Value, Value]


def operands(ctx: Context, moe: Moe, dtype: str) -> tuple[Operands, ...]:
    """Return both LoRA factors of both expert matrices as operands of grouped products, padded to rows of 16 bytes.

    Without adapters the tuple is empty. Source: ``_to_grouped_mm_operand``, ``_pad_lora_rank_for_grouped_mm``.
    """
    tape, pairs = ctx.tape, list[Operands]()
    for factor in factors_here(moe, ctx.setting.adapter, ctx.setting.expert_parallel):
        down, up = (
            convert_weight(tape, tape.parameter(ctx.register(_expert_factor(ctx, name, shape))), dtype)
            for name, shape in ((factor.name + "_A", factor.down_shape), (factor.name + "_B", factor.up_shape))
        )
        rank = factor.up_shape[1]
        padded = round_up(rank, ROW_BYTES // ITEM_BYTES[dtype])
        if padded > rank:
            down = _padded(tape, down, (*factor.down_shape[:2], padded))
            up = _padded(tape, up, (factor.up_shape[0], padded, factor.up_shape[2]))
        pairs.append((down, up))
    return tuple(pairs)


def _expert_factor(ctx: Context, name: str, shape: tuple[int, ...]) -> Parameter:
    adapter = ctx.setting.adapter
    dtype = adapter.module_dtype if adapter is not None else ctx.setting.param_dtype
    return Parameter(name, shape, dtype, requires_grad=True, has_grad=ctx.setting.has_grad)


def _padded(tape: Tape, x: Value, shape: tuple[int, ...]) -> Value:
    """``F.pad``: a copy, as is its gradient without the padding."""
    return operator(tape, tape.value(shape, x.dtype, "padded factor"), x, "padding's gradient")


def with_adapter(
    tape: Tape, product: Value, x: Value, factors: Operands, offsets: Storage, named: list[Value]
) -> Value:
    """Add LoRA to a grouped product: ``product + grouped_mm(grouped_mm(x, A), B) * scale``, [rows, outputs].

    ``named``: takes what the module's forward has variables for to its end.
    """
    down, up = factors
    inner = grouped_mm(tape, x, down, down.shape[2], offsets, "experts' lora_A", down.shape)
    outer = grouped_mm(tape, inner, up, up.shape[2], offsets, "experts' lora_B", up.shape)
    named += (inner, outer)
    return add(tape, product, scale(tape, outer, "scaled adapter"), "with adapter")
