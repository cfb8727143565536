"""Which matrices of a layer, or at a model's ends, have adapters on a rank, and the tensors that those are."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.accounts.state import LocalTensor, adapter_tensors, block_component_tensors
from memcheck.autograd.context import Adapter, adapts
from memcheck.autograd.tensor import ceil_div
from memcheck.frameworks.stacked_adapters import expert_adapters
from memcheck.frameworks.torch.data_parallel import all_gather_dtype
from memcheck.frameworks.torch.rank_tensors import HEAD, unquantised
from memcheck.job.types import Lora, TrainingJob
from memcheck.job.versions import is_before, version_of_models
from memcheck.models.module_paths import PROJECTIONS
from memcheck.models.parameters import head_width, task_tensors
from memcheck.models.types import (
    Architecture,
    Attention,
    Block,
    Mlp,
    Moe,
    ParameterTensor,
    SharedTransformerBlock,
    SparePairs,
    is_saved,
)

BESIDE_STREAM = ("altup_unembed_projections", "contact_head", "per_layer_model_projection", "project_out")
"""Modules whose output is not the stream that the first layer reads: they run after the layers, or make
other inputs.
"""

STACKED = (5, 0)
"""The first transformers whose experts are one tensor a layer; before it, each is linear layers, which bitsandbytes
quantises."""


def adapter_of(job: TrainingJob, lora: Lora, part: str) -> Adapter:
    """Return the adapters that the job adds to one part of the model, such as ``language``; ``lora.parts`` may leave it
    out.
    """
    framework = job.framework
    return Adapter(
        rank=lora.rank,
        targets=lora.targets_in(part),
        dtype=lora.dtype,
        base_format=framework.stored_as(job.base_format) if job.base_format is not None else None,
        peft_base_format=None if framework.adapters.are_own_code else job.base_format,
        dropout=lora.dropout,
        dora=lora.dora,
        target_parameters=lora.target_parameters if not lora.parts or part in lora.parts else (),
        expert_rank=lora.expert_rank,
        quantizes_experts=is_before(version_of_models(job, framework), STACKED),
        quantizes_stacked_experts=bool(job.option("quantize_experts", default=False)),
        compute_dtype=job.recipe.compute if job.prepares_kbit else None,
        gathered_dtype=all_gather_dtype(job),
        peft_input_dtype=lora.dtype if job.fsdp_version == 1 and all_gather_dtype(job) is not None else None,
        unquantized_modules=unquantised(job),
    )


def adapted_block(
    block: Block, adapter: Adapter, expert: int, on_rank: Callable[[ParameterTensor, object], LocalTensor]
) -> tuple[LocalTensor, ...]:
    """Return the block's parameter tensors on one rank, each followed by its adapters.

    ``expert``: number of expert-parallel ranks. ``on_rank``: returns the rank's part of a tensor of one of the block's
    modules.
    """
    tensors: list[LocalTensor] = []
    own_names = {t.name for t, _ in block_component_tensors(block)}
    # blocks that several layers share are modules of their own over the same tensors, with adapters of their own
    shares = isinstance(block, SharedTransformerBlock)
    all_tensors = named_tensors(block) if shares else block_component_tensors(block)
    for t, component in all_tensors:
        tensor = on_rank(t, component)
        can_be_quantized = t.linear or (tensor.expert and adapter.stores_quantized(tensor.shape))
        stored = adapter.format_of(t.name) if can_be_quantized else None
        if t.name in own_names:
            tensors.append(tensor._replace(dtype=stored.name if stored is not None else None))
        if t.linear and len(tensor.shape) == 2:
            tensors += layer_adapters(component, t, tensor.shape, adapter)
    if isinstance(block.mlp, Moe):
        tensors += expert_adapters(block.mlp, adapter, expert)
    return (*tensors, *spare_adapters(block, adapter))


def layer_adapters(
    component: object, tensor: ParameterTensor, shape: tuple[int, ...], adapter: Adapter
) -> list[LocalTensor]:
    """List the LoRA tensors of one linear layer on one rank; an empty list if peft does not wrap it.

    ``tensor``: its weight, of which the rank has ``shape``. ``component``: the attention or MLP that it belongs to.
    """
    if not _adaptable(component, adapter, tensor.name):
        return []
    trained = not tensor.fixed  # no gradient reaches an indexer's layers, nor their adapters
    return [adapter_tensor._replace(trained=trained) for adapter_tensor in adapter_tensors(tensor, shape, adapter)]


def named_tensors(block: Block) -> list[tuple[ParameterTensor, object]]:
    """The tensors of a layer, and those that it shares with other layers, whichever layer holds them."""
    return block_component_tensors(block._replace(shared_with=block.shared_with._replace(later=False)))


def spare_adapters(block: Block, adapter: Adapter) -> list[LocalTensor]:
    """Return the adapters of low-rank pairs that other layers run: they are resident and get no gradient.

    Source: transformers modeling_zamba2.py: every Zamba2Attention and Zamba2MLP makes a list of all layers' pairs.
    """
    if not isinstance(block.extension, SparePairs):
        return []
    pairs = [t for t in block.extra_tensors if "_adapter." in t.name]
    adapters = [adapter_tensor for t in pairs for adapter_tensor in layer_adapters(None, t, t.shape, adapter)]
    return block.extension.layers * [adapter_tensor._replace(trained=False) for adapter_tensor in adapters]


def _adaptable(component: object, adapter: Adapter, name: str) -> bool:
    """Say whether peft wraps this linear layer: some families with stacked experts leave out dense layers."""
    if isinstance(component, Mlp) and not component.adaptable:
        return False
    if isinstance(component, Moe) and not component.adaptable:
        return False  # their adapters are those of the experts and the router
    if isinstance(component, Attention) and component.gate_matrix == "hidden" and name.endswith(".gate_proj.weight"):
        return False
    return adapts(adapter, name.removesuffix(".weight"))


def table_adapters(lora: Lora, architecture: Architecture) -> tuple[LocalTensor, ...]:
    """Adapters on projections of the looked-up rows (Gemma 4, ELECTRA, OPT-350m), and of Gemma 3n's streams."""
    return tuple(each for t in _projections(architecture) for each in _adapters(lora, t))


def adapts_stream(lora: Lora, architecture: Architecture) -> bool:
    """Say whether a LoRA adapter wraps a projection between the embedding table and the first layer.

    If so, the first layer's input needs a gradient.
    """
    for tensor in _projections(architecture):
        is_on_stream = not any(name in tensor.name for name in BESIDE_STREAM)
        if is_on_stream and _adapters(lora, tensor):
            return True
    return False


def _projections(architecture: Architecture) -> list[ParameterTensor]:
    """Return the tensors outside layers that are linear layers, or modules that an adapter may wrap."""
    if not architecture.extra_tensors:
        return []

    return [t for t in architecture.extra_tensors if t.linear or any(name in t.name for name in PROJECTIONS)]


def head_adapters(lora: Lora, architecture: Architecture, tensor_parallel: int) -> tuple[LocalTensor, ...]:
    """List the LoRA tensors on one rank of the layers around the head: a transform, a pooler, and the head itself.

    ``tensor_parallel``: number of tensor-parallel ranks. peft's ``all-linear`` leaves the head out, so that it has an
    adapter only if the targets name it.
    """
    adapters: list[LocalTensor] = []
    adapted_tensors: list[ParameterTensor] = []
    if architecture.head_layer.activation:  # a dense layer before the head
        adapted_tensors += architecture.head_layer.tensors
    if architecture.task is not None:  # a pooler, unless it is one of modules_to_save
        adapted_tensors += [t for t in task_tensors(architecture) if not is_saved(t.name)]
    for t in adapted_tensors:
        adapters += _adapters(lora, t) if t.linear else ()
    if architecture.task is not None:
        for t in architecture.task.unused:  # nothing reads what they return: no gradient reaches their adapters
            without_gradient = _adapters(lora, t) if t.linear else ()
            adapters += [adapter_tensor._replace(trained=False) for adapter_tensor in without_gradient]
    targets = lora.targets_in("language") if lora.reach else lora.target_modules
    target_names = (targets,) if isinstance(targets, str) else targets
    if architecture.head and HEAD in target_names:
        shape = (ceil_div(architecture.vocab_size, tensor_parallel), head_width(architecture))
        adapters += adapter_tensors(ParameterTensor(f"{HEAD}.weight", shape, "head", linear=True), shape, lora)
    return tuple(adapters)


def _adapters(lora: Lora, t: ParameterTensor) -> list[LocalTensor]:
    """Return the adapter matrices of one tensor outside layers; empty if the targets do not name it."""
    adapter = Adapter(lora.rank, lora.targets_in("language"), lora.dtype)
    return adapter_tensors(t, t.shape, lora) if adapts(adapter, t.name.removesuffix(".weight")) else []
