"""Which matrices of a layer have adapters on a rank, and the tensors that those are."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor, adapter_tensors, block_component_tensors
from memcheck.autograd.context import Adapter, adapts
from memcheck.frameworks.stacked_adapters import expert_adapters
from memcheck.frameworks.torch.fsdp import gathered_dtype
from memcheck.frameworks.torch.kept_wide import unquantised
from memcheck.frameworks.torch.rank_tensors import Holding, block_tensor
from memcheck.job.types import Lora, TrainingJob
from memcheck.job.versions import is_before, version_of_models
from memcheck.models.types import Attention, Block, Mlp, Moe, ParameterTensor

STACKED = (5, 0)
"""The first transformers whose experts are one tensor a layer; before it, each is linear layers, which bitsandbytes
quantises."""


def adapter_of(job: TrainingJob, lora: Lora, part: str) -> Adapter:
    """The adapters of one part of the model, which ``lora.parts`` may leave out."""
    profile = job.framework
    return Adapter(
        rank=lora.rank,
        targets=lora.targets_in(part),
        dtype=lora.dtype,
        quantized=bool(job.held_in),
        storage=job.held_in,
        held="" if job.framework.adapters.own else job.held_in,
        dropout=lora.dropout,
        dora=lora.dora,
        parameters=lora.target_parameters if not lora.parts or part in lora.parts else (),
        expert_rank=lora.expert_rank,
        quantizes_experts=is_before(version_of_models(job, profile), STACKED),
        stacked=bool(job.option("quantize_experts", default=False)),
        computes=job.recipe.compute if job.prepares_kbit else None,
        gathered=gathered_dtype(job),
        rows=lora.dtype if job.fsdp == 1 and gathered_dtype(job) is not None else None,
        unquantised=unquantised(job),
    )


def adapted_block(block: Block, held: Holding, adapter: Adapter) -> tuple[LocalTensor, ...]:
    """The block's parameter tensors on one rank, each followed by its adapters."""
    found: list[LocalTensor] = []
    own = {t.name for t, _ in block_component_tensors(block)}
    # blocks that several layers share are modules of their own over the same tensors, with adapters of their own
    for t, component in named_tensors(block) if block.in_turn else block_component_tensors(block):
        tensor = block_tensor(t, component, held)
        quantized = (t.linear or (tensor.expert and adapter.holds(tensor.shape))) and adapter.quantises(t.name)
        if t.name in own:
            found.append(tensor._replace(dtype=adapter.storage if quantized else None))
        if t.linear and len(tensor.shape) == 2:
            found += layer_adapters(component, t, tensor.shape, adapter)
    if isinstance(block.mlp, Moe):
        found += expert_adapters(block.mlp, adapter, held.expert)
    return (*found, *spare_adapters(block, adapter))


def layer_adapters(
    component: object, t: ParameterTensor, shape: tuple[int, ...], adapter: Adapter
) -> list[LocalTensor]:
    """The adapter of one linear layer of local ``shape``; those of an indexer rest, and get no gradient either."""
    if not _adaptable(component, adapter, t.name):
        return []
    return [found._replace(trained=not t.fixed) for found in adapter_tensors(t, shape, adapter)]


def named_tensors(block: Block) -> list[tuple[ParameterTensor, object]]:
    """The tensors of a layer, and those that it shares with other layers, whichever layer holds them."""
    return block_component_tensors(block._replace(borrows=False))


def spare_adapters(block: Block, adapter: Adapter) -> list[LocalTensor]:
    """Adapters of low-rank pairs that other layers run: they rest, and get no gradient.

    Source: transformers modeling_zamba2.py: every Zamba2Attention and Zamba2MLP makes a list of all layers' pairs.
    """
    pairs = [t for t in block.extra_tensors if "_adapter." in t.name] if block.spare_pairs else []
    found = [each for t in pairs for each in layer_adapters(None, t, t.shape, adapter)]
    return block.spare_pairs * [each._replace(trained=False) for each in found]


def _adaptable(component: object, adapter: Adapter, name: str) -> bool:
    """Whether peft wraps this linear layer: some families with stacked experts leave out dense layers."""
    if isinstance(component, Mlp) and not component.adaptable:
        return False
    if isinstance(component, Moe) and component.stacked_adapters:
        return False  # their adapters are those of the experts and the router
    if isinstance(component, Attention) and not component.gate_adaptable and name.endswith(".gate_proj.weight"):
        return False
    return adapts(adapter, name.removesuffix(".weight"))
