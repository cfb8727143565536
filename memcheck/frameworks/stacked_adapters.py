"""Adapters of stacked experts and routers, which are no linear layers: their tensors, as peft and NeMo AutoModel make
them.

Source: peft 0.21 tuners/lora/layer.py (ParamWrapper) and utils/transformers_weight_conversion.py; of whole experts on
several ranks NVIDIA-NeMo/Automodel 36044ad3 ``components/_peft/lora_experts.py``.
"""

from __future__ import annotations

from math import prod

from memcheck.accounts.state import LocalTensor, adapter_tensors
from memcheck.autograd.context import Adapter, adapts
from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.models.module_types import IdentityMoe
from memcheck.models.types import Moe, ParameterTensor
from memcheck.record import Record

EXPERT_NAMES = ("gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
POINTER = "/training/lora/target_parameters"


class Factors(Record):
    """The two matrices of one adapted tensor, as peft stores them."""

    name: str
    down_shape: tuple[int, ...]
    up_shape: tuple[int, ...]


def adapted_tensors(adapter: Adapter | None, moe: Moe) -> tuple[Factors, ...]:
    """Return the adapter matrices of a mixture's stacked experts and of its router.

    The rank counts twice for the fused gate and up matrices. Every expert has adapter matrices of its own.
    """
    if adapter is None:
        return ()
    stacked = stacked_experts(moe)  # [experts, outputs, inputs] each
    adapters = []
    for t in stacked:
        if names_parameter(adapter.target_parameters, t.name):
            experts, outputs, inputs = t.shape
            rank = (adapter.expert_rank or adapter.rank) * experts
            adapters.append(Factors(t.name, (rank, inputs), (outputs, rank)))
    if moe.adaptable:
        return tuple(adapters)
    if (adapter.targets == "all-linear" or adapts(adapter, "gate")) and not isinstance(moe, IdentityMoe):
        router = _router(moe)
        adapters.append(Factors(router.name, (adapter.rank, router.shape[1]), (router.shape[0], adapter.rank)))
    for t, fused_matrices in zip(stacked, (2, 1), strict=False):  # gate and up together, then down
        if any(factors.name == t.name for factors in adapters):
            continue
        if targets_experts(adapter, "down_proj" if t is stacked[-1] else "gate_proj"):
            experts, outputs, inputs = t.shape
            rank = fused_matrices * adapter.rank * experts
            adapters.append(Factors(t.name, (rank, inputs), (outputs, rank)))
    return tuple(adapters)


def expert_adapters(moe: Moe, adapter: Adapter, expert_ranks: int = 1) -> list[LocalTensor]:
    """Return the tensors of the adapters of stacked experts on one rank.

    ``expert_ranks``: with expert parallelism a rank has whole experts, whose adapters differ from peft's.
    """
    if expert_ranks > 1:
        return factors_resting(moe, adapter, expert_ranks)
    adapted = adapted_tensors(adapter, moe)
    # of quantised experts peft's outermost wrapper has the last parameter, whose adapter alone is read
    read = adapted[-1:] if adapter.quantizes_stacked_experts else adapted
    return [
        LocalTensor(name=factors.name + end, shape=size, trained=factors in read, dtype=adapter.dtype, matrix=True)
        for factors in adapted
        for end, size in ((".lora_A", factors.down_shape), (".lora_B", factors.up_shape))
    ] + _unread_adapter(moe, adapter)


def _router(moe: Moe) -> ParameterTensor:
    return next(t for t in moe.tensors if t.group == "router" and t.shape[0] == moe.experts)


def _unread_adapter(moe: Moe, adapter: Adapter) -> list[LocalTensor]:
    """Return the adapter of the router that no forward reads: it is resident and never gets a gradient."""
    if not isinstance(moe, IdentityMoe):
        return []
    router = _router(moe)
    name = router.name.removesuffix(".weight")
    if not adapts(adapter, name):
        return []
    adapters = adapter_tensors(router, router.shape, adapter)
    return [t._replace(trained=False) for t in adapters]


def stacked_experts(moe: Moe) -> list[ParameterTensor]:
    """The matrices that hold all experts of a layer."""
    return [t for t in moe.tensors if t.group == "experts" and len(t.shape) == 3]


def names_parameter(targets: tuple[str, ...], name: str) -> bool:
    """Whether ``target_parameters`` name this parameter, from the end of its path (peft tuners_utils.py)."""
    return any(name == target or name.endswith("." + target) or target.endswith("." + name) for target in targets)


def targets_experts(adapter: Adapter, name: str) -> bool:
    """Say whether the targets name the experts' matrices by their names of transformers 4."""
    if adapter.targets == "all-linear":
        return True
    aliases = {"gate_proj": ("gate_proj", "w1"), "down_proj": ("down_proj", "w2")}[name]
    return any(adapts(adapter, alias) for alias in aliases)


def demand_both(adapter: Adapter | None, moe: Moe) -> None:
    """Check that adapters are on all matrices of the experts or on none.

    Raises:
        UnsupportedError: only some matrices are adapted, which AutoModel's classes cannot be told.
    """
    named = (
        [names_parameter(adapter.target_parameters, t.name) for t in stacked_experts(moe)]
        if adapter is not None
        else []
    )
    if any(named) and not all(named):
        message = "experts on several ranks have adapters of all their matrices, or none"
        help = f"name them all: {', '.join(t.name for t in stacked_experts(moe))}"
        raise UnsupportedError(message, help, POINTER)


def factors_here(moe: Moe, adapter: Adapter | None, expert_ranks: int) -> tuple[Factors, ...]:
    """Return the LoRA factors of this rank's stacked experts, of up (with gate) and of down; none if they have no
    adapters.

    A: [experts here, inputs, rank]; B: [experts here, rank, outputs].
    """
    stacked = stacked_experts(moe)
    if adapter is None or not any(names_parameter(adapter.target_parameters, t.name) for t in stacked):
        return ()
    rank, local = adapter.expert_rank or adapter.rank, ceil_div(moe.experts, expert_ranks)
    hidden = prod(stacked[-1].shape) // (moe.experts * moe.width)
    up_width = 2 * moe.width if moe.gated else moe.width
    path = stacked[0].name.rpartition(".")[0]
    return (
        Factors(path + ".lora_gate_and_up", (local, hidden, rank), (local, rank, up_width)),
        Factors(path + ".lora_down", (local, moe.width, rank), (local, rank, hidden)),
    )


def factors_resting(moe: Moe, adapter: Adapter, expert_ranks: int) -> list[LocalTensor]:
    """Return the adapters of stacked experts as one rank holds them: FSDP2 divides them after it has divided the
    experts (``parallelizer.py``, _moe_shard_placement). ``expert_ranks``: FSDP ranks.
    """
    return [
        LocalTensor(
            name=f"{factors.name}_{end}",
            shape=shape,
            trained=True,
            dtype=adapter.dtype,
            expert=True,
            matrix=True,
            sharded_dim=1,
        )
        for factors in factors_here(moe, adapter, expert_ranks)
        for end, shape in (("A", factors.down_shape), ("B", factors.up_shape))
    ]
