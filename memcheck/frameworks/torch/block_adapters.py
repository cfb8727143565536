"""Which matrices of a layer have adapters on a rank, and the tensors that those are."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor, adapter_tensors, block_component_tensors
from memcheck.autograd.adapter import Adapter
from memcheck.autograd.context import adapts
from memcheck.models.types import Attention, Block, Mlp, Moe, ParameterTensor


def layer_adapters(
    component: object, t: ParameterTensor, shape: tuple[int, ...], adapter: Adapter
) -> list[LocalTensor]:
    """The adapter of one linear layer of local ``shape``; those of an indexer rest, and get no gradient either."""
    if not _adaptable(component, adapter, t.name):
        return []
    return [found._replace(trained=not t.fixed) for found in adapter_tensors(t, shape, adapter)]


def named_tensors(block: Block) -> list[tuple[ParameterTensor, object]]:
    """The tensors of a layer and of the block that it shares with others, whoever holds them."""
    return block_component_tensors(block._replace(borrows=False))


def spare_adapters(block: Block, adapter: Adapter) -> list[LocalTensor]:
    """Adapters of low-rank pairs that other layers run: they rest, and get no gradient.

    Source: transformers modeling_zamba2.py: every Zamba2Attention and Zamba2MLP makes a list of all layers' pairs.
    """
    pairs = [t for t in block.extra_tensors if "_adapter." in t.name] if block.spare_pairs else []
    found = [each for t in pairs for each in layer_adapters(None, t, t.shape, adapter)]
    return block.spare_pairs * [each._replace(trained=False) for each in found]


def _adaptable(component: object, adapter: Adapter, name: str) -> bool:
    """Whether peft wraps this linear layer: beside stacked experts some families' dense layers are left out."""
    if isinstance(component, Mlp) and not component.adaptable:
        return False
    if isinstance(component, Moe) and component.stacked_adapters:
        return False  # their adapters are those of the experts and the router
    if isinstance(component, Attention) and not component.gate_adaptable and name.endswith(".gate_proj.weight"):
        return False
    return adapts(adapter, name.removesuffix(".weight"))
