"""The adapters of linear layers of no block, at a model's ends."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor, adapter_tensors
from memcheck.autograd.context import Adapter, adapts
from memcheck.frameworks.torch.end_tensors import HEAD
from memcheck.job.types import Lora
from memcheck.models.parameters import head_width, task_tensors
from memcheck.models.task import is_saved
from memcheck.models.types import Architecture, ParameterTensor

BESIDE_STREAM = ("altup_unembed_projections", "contact_head", "per_layer_model_projection", "project_out")
"""Modules whose output is not the stream that the first layer reads: they run after the layers, or make
other inputs.
"""


def table_adapters(lora: Lora, a: Architecture) -> tuple[LocalTensor, ...]:
    """Adapters on projections of the looked-up rows (Gemma 4, ELECTRA, OPT-350m), and of Gemma 3n's streams."""
    return tuple(each for t in _projections(a) for each in _adapters(lora, t))


def adapts_stream(lora: Lora, a: Architecture) -> bool:
    """Whether an adapter stands between the table and the first layer, whose input then wants a gradient."""
    return any(_adapters(lora, t) for t in _projections(a) if not any(name in t.name for name in BESIDE_STREAM))


def _projections(a: Architecture) -> list[ParameterTensor]:
    if not a.extra_tensors:
        return []
    from memcheck.models.module_paths import PROJECTIONS

    return [t for t in a.extra_tensors if t.linear or any(name in t.name for name in PROJECTIONS)]


def head_adapters(lora: Lora, a: Architecture, tensor: int) -> tuple[LocalTensor, ...]:
    """Adapters on the layer before the head, and on the head if targets name it; ``all-linear`` leaves the head out.
    ``tensor``: tensor-parallel ranks.

    A layer that pools for labels has adapters unless peft trains it whole. A layer whose result is unused has adapters
    as well; those never get a gradient.
    """
    found = [each for t in a.head_tensors if a.head_transform and t.linear for each in _adapters(lora, t)]
    if a.task is not None:
        found += [each for t in task_tensors(a) if t.linear and not is_saved(t.name) for each in _adapters(lora, t)]
        unread = (each for t in a.task.idle if t.linear for each in _adapters(lora, t))
        found += [each._replace(trained=False) for each in unread]
    targets = lora.targets_in("language") if lora.reach else lora.target_modules
    if a.head and HEAD in ((targets,) if isinstance(targets, str) else targets):
        shape = (-(-a.vocab_size // tensor), head_width(a))
        found += adapter_tensors(ParameterTensor(f"{HEAD}.weight", shape, "head", linear=True), shape, lora)
    return tuple(found)


def _adapters(lora: Lora, t: ParameterTensor) -> list[LocalTensor]:
    adapter = Adapter(lora.rank, lora.targets_in("language"), lora.dtype, quantized=False)
    return adapter_tensors(t, t.shape, lora) if adapts(adapter, t.name.removesuffix(".weight")) else []
