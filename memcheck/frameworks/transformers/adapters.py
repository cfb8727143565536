"""LoRA on tensors that are no linear layers: peft's ParamWrapper around stacked experts and routers.

Source: peft 0.21 tuners/lora/layer.py (ParamWrapper, _LoraFactorsProxy) and utils/transformers_weight_conversion.py.
"""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.adapter import Adapter
from memcheck.autograd.context import Context, adapts
from memcheck.autograd.elementwise import convert_weight
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.models.types import Moe, ParameterTensor
from memcheck.record import Record

EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")


class Factors(Record):
    """The two matrices of one adapted tensor, as peft stores them."""

    name: str
    down: tuple[int, ...]
    up: tuple[int, ...]


def adapted_tensors(adapter: Adapter | None, m: Moe) -> tuple[Factors, ...]:
    """The adapters of a mixture's stacked experts and of its router.

    The fused gate and up matrices count twice the rank, and every expert has factors of its own.
    """
    if adapter is None:
        return ()
    found = [
        Factors(t.name, (rank, t.shape[2]), (t.shape[1], rank))
        for t, rank in [(t, (adapter.expert_rank or adapter.rank) * t.shape[0]) for t in stacked_experts(m)]
        if names_parameter(adapter.parameters, t.name)
    ]
    if not m.stacked_adapters:
        return tuple(found)
    if adapter.targets == "all-linear" or adapts(adapter, "gate"):
        router = next(t for t in m.tensors if t.group == "router" and t.shape[0] == m.experts)
        found.append(Factors(router.name, (adapter.rank, router.shape[1]), (router.shape[0], adapter.rank)))
    stacked = stacked_experts(m)
    for tensor, ranks in zip(stacked, (2, 1), strict=False):
        if any(factors.name == tensor.name for factors in found):
            continue
        if targets_experts(adapter, "down_proj" if tensor is stacked[-1] else "gate_proj"):
            rank = ranks * adapter.rank * tensor.shape[0]
            found.append(Factors(tensor.name, (rank, tensor.shape[2]), (tensor.shape[1], rank)))
    return tuple(found)


def expert_adapters(m: Moe, adapter: Adapter, ways: int = 1) -> list[LocalTensor]:
    """The tensors of those adapters on a rank; whole experts on each of ``ways`` ranks have other ones than peft's."""
    if ways > 1:
        from memcheck.frameworks.transformers.grouped_adapters import factors_resting

        return factors_resting(m, adapter, ways)
    return [
        LocalTensor(name=factors.name + end, shape=size, trained=True, dtype=adapter.dtype, matrix=True)
        for factors in adapted_tensors(adapter, m)
        for end, size in ((".lora_A", factors.down), (".lora_B", factors.up))
    ]


def stacked_experts(m: Moe) -> list[ParameterTensor]:
    """The matrices that hold all experts of a layer."""
    return [t for t in m.tensors if t.group == "experts" and len(t.shape) == 3]


def names_parameter(targets: tuple[str, ...], name: str) -> bool:
    """Whether ``target_parameters`` name this parameter, from the end of its path (peft tuners_utils.py)."""
    return any(name == target or name.endswith("." + target) or target.endswith("." + name) for target in targets)


def targets_experts(adapter: Adapter, name: str) -> bool:
    """Whether the targets name the experts' matrices by their names of transformers 4."""
    if adapter.targets == "all-linear":
        return True
    aliases = {"gate_proj": ("gate_proj", "w1"), "down_proj": ("down_proj", "w2")}[name]
    return any(adapts(adapter, alias) for alias in aliases)


def merged_weight(ctx: Context, m: Moe, tensor: ParameterTensor, base: Value) -> Value:
    """``base + scaling * B @ A`` as a tensor of its own, which the product keeps: a copy of all experts per layer."""
    factors = factors_of(ctx, m, tensor, base.dtype)
    return base if factors is None else folded(ctx.tape, base, factors)


def factors_of(ctx: Context, m: Moe, tensor: ParameterTensor, dtype: str) -> tuple[Value, Value] | None:
    """Both matrices of a tensor's adapter in the dtype of its weight, or None where it has no adapter.

    The parametrization holds them as long as it is registered (``_LoraFactorsProxy``).
    """
    adapter = ctx.setting.adapter
    factors = next((f for f in adapted_tensors(adapter, m) if f.name == tensor.name), None)
    if factors is None or adapter is None:
        return None
    tape = ctx.tape
    lhs, rhs = (
        convert_weight(tape, tape.parameter(ctx.register(_factor(ctx, factors.name + end, size, adapter))), dtype)
        for end, size in ((".lora_B", factors.up), (".lora_A", factors.down))
    )
    return lhs, rhs


def folded(tape: Tape, base: Value, factors: tuple[Value, Value]) -> Value:
    """``torch.baddbmm(base, lhs, rhs)``: a tensor of the weight's size."""
    lhs, rhs = factors
    shape, dtype = base.shape, base.dtype
    out = tape.value(shape, dtype, "weight with adapter")
    shapes = (lhs.shape, rhs.shape)

    def run(grad: Storage, kept: object = (lhs.storage, rhs.storage)) -> list[Storage | None]:
        grads: list[Storage | None] = []
        for size in shapes:
            product = tape.new(size, dtype, "bmm")
            grads.append(tape.new(size, dtype, "scaled factor gradient"))
            del product
        return grads

    return tape.record(out, (lhs, rhs), run)


def _factor(ctx: Context, name: str, shape: tuple[int, ...], adapter: Adapter) -> Parameter:
    return Parameter(name, shape, adapter.seen, True, has_grad=ctx.setting.has_grad)
