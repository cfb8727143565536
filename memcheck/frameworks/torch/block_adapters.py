"""Which matrices of a layer have adapters on a rank, and the tensors that those are."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor, adapter_tensors
from memcheck.autograd.context import Adapter, adapts
from memcheck.models.types import Attention, Mlp, Moe, ParameterTensor


def layer_adapters(
    component: object, t: ParameterTensor, shape: tuple[int, ...], adapter: Adapter
) -> list[LocalTensor]:
    """The adapter of one linear layer of local ``shape``; those of an indexer rest, and get no gradient either."""
    if not _adaptable(component, adapter, t.name):
        return []
    return [found._replace(trained=not t.fixed) for found in adapter_tensors(t, shape, adapter)]


def _adaptable(component: object, adapter: Adapter, name: str) -> bool:
    """Whether peft wraps this linear layer: beside stacked experts some families' dense layers are left out."""
    if isinstance(component, Mlp) and not component.adaptable:
        return False
    if isinstance(component, Moe) and component.stacked_adapters:
        return False  # their adapters are those of the experts and the router
    if isinstance(component, Attention) and not component.gate_adaptable and name.endswith(".gate_proj.weight"):
        return False
    return adapts(adapter, name.removesuffix(".weight"))
