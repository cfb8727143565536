"""Which parameters are trained (frozen parts, adapters), and the optimizer that steps them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from memcheck.autograd.context import is_frozen
from memcheck.frameworks.torch.rank_tensors import frozen_layers, module_patterns
from memcheck.frameworks.torch.resident import own_adafactor
from memcheck.job.types import Lora, TrainingJob
from memcheck.models.types import Architecture
from memcheck.verify.build.model import base_of, blocks_of, head_of, part_of_path
from memcheck.verify.build.tensors import DTYPES, is_wrapper
from memcheck.verify.compare import RefusedStepError

LABELLED = {"classification": "SEQ_CLS", "reward": "SEQ_CLS", "token-classification": "TOKEN_CLS"}
"""peft's task type by the kind of head: with it the matrix to the labels is trained whole, and gets no adapter."""


SIDES = {"vision", "projector", "language", "audio"}
"""Parts of a multimodal model that ``training.freeze`` names."""


def freeze(model: nn.Module, architecture: Architecture, patterns: tuple[str, ...]) -> None:
    """No gradients for ``embed``, ``head``, ``norm`` (the final one), ``layers:A-B``, parts and module names."""
    base = base_of(model)
    blocks = blocks_of(model, architecture)
    whole: list[nn.Module] = []
    if "embed" in patterns:
        whole.append(base.get_input_embeddings())
        if architecture.paths.positions:
            whole.append(base.get_submodule(architecture.paths.positions))
    if "head" in patterns:
        whole.append(head_of(model))
    if "norm" in patterns and architecture.final_norm is not None:
        whole.append(base.get_submodule(architecture.final_norm.name))
    whole += [blocks[i] for i in frozen_layers(patterns) if i < len(blocks)]
    for module in whole:
        module.requires_grad_(requires_grad=False)
    for part in SIDES & {*patterns}:
        for name, parameter in base.named_parameters():
            if part_of_path(name) == part:
                parameter.requires_grad_(requires_grad=False)
    if "encoder" in patterns:  # without the table that it shares with the decoder
        for name, parameter in base.get_encoder().named_parameters():
            if "embed_tokens" not in name:
                parameter.requires_grad_(requires_grad=False)
    names = module_patterns(patterns)
    for block in blocks if names else ():
        for name, parameter in block.named_parameters():
            if is_frozen(name.removesuffix(".weight"), names):
                parameter.requires_grad_(requires_grad=False)


def adapt(model: nn.Module, job: TrainingJob, lora: Lora) -> nn.Module:
    """The model with peft's LoRA adapters, made in the dtype that the plan states."""
    from peft import LoraConfig, get_peft_model

    targets = _targets(model, lora)
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=2 * lora.rank,
        lora_dropout=lora.dropout,
        use_dora=lora.dora,
        modules_to_save=list(lora.modules_to_save) or None,
        target_parameters=list(lora.target_parameters) or None,
        rank_pattern={name: lora.expert_rank for name in lora.target_parameters if lora.expert_rank},
        target_modules=targets,
        task_type=LABELLED.get(job.head.kind) or ("CAUSAL_LM" if _continues(model) else None),
    )
    outside = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[job.recipe.params])
    try:
        with _made_in_place():
            # the cast to fp32 that autocast_adapter_dtype stands for is done below: it is spelt in the plan
            adapted = get_peft_model(model, settings, autocast_adapter_dtype=False)
    finally:
        torch.set_default_dtype(outside)
    _copy_in_place(adapted)
    wanted = DTYPES[lora.dtype]
    for name, module in adapted.named_modules():
        matrix = "lora_" in name and isinstance(getattr(module, "weight", None), nn.Parameter)
        if matrix and module.weight.dtype != wanted:
            module.weight = nn.Parameter(module.weight.detach().to(wanted))
    trained: nn.Module = adapted
    return trained


def _targets(model: nn.Module, lora: Lora) -> str | list[str]:
    """What peft is told to adapt: a word or a pattern, or names; of parts alone, the paths of all that they have."""
    stated = lora.target_modules
    if not lora.parts:
        return stated if isinstance(stated, str) else list(stated)
    head = head_of(model)
    ends = None if isinstance(stated, str) else stated
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module is not head
        and part_of_path(name) in lora.parts
        and (ends is None or any(name == end or name.endswith(f".{end}") for end in ends))
    ]


def _continues(model: nn.Module) -> bool:
    """Whether it is a decoder alone, as peft's class of such models expects."""
    return hasattr(model, "prepare_inputs_for_generation") and not getattr(model.config, "is_encoder_decoder", False)


def _copy_in_place(model: nn.Module) -> None:
    """Give what ``modules_to_save`` trains weights of their own.

    ``copy.deepcopy`` of a fake tensor leaves it with one storage and its views with another, which would count twice.
    """
    from peft.utils.other import ModulesToSaveWrapper

    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            for copied in module.modules_to_save.modules():
                for name, weight in list(copied.named_parameters(recurse=False)):
                    setattr(copied, name, nn.Parameter(torch.empty_like(weight), requires_grad=weight.requires_grad))


@contextmanager
def _made_in_place() -> Iterator[None]:
    """Adapters are made where their layer is: peft's ``Module.to`` afterwards cannot swap fake parameters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    move, to = BaseTunerLayer._move_adapter_to_device_of_base_layer, nn.Module.to  # noqa: SLF001
    BaseTunerLayer._move_adapter_to_device_of_base_layer = lambda *_, **__: None  # noqa: SLF001
    nn.Module.to = lambda self, *_, **__: self
    try:
        yield
    finally:
        BaseTunerLayer._move_adapter_to_device_of_base_layer = move  # noqa: SLF001
        nn.Module.to = to


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """What the optimizer steps on."""
    return [p for p in model.parameters() if p.requires_grad]


Groups = list[Any]


def make_optimizers(model: nn.Module, job: TrainingJob) -> list[torch.optim.Optimizer]:
    """One optimizer, or two: Muon for matrices and AdamW for everything else."""
    if job.optimizer.name == "muon":
        return _muon(model, job)
    kind, options = _kind(job)
    return [_made(job, kind, trained_parameters(model), lr=1e-4, **options)]


def _made(
    job: TrainingJob, kind: type[torch.optim.Optimizer], parameters: list[nn.Parameter], **options: Any
) -> torch.optim.Optimizer:
    """The optimizer itself, or divided by ZeroRedundancyOptimizer."""
    if job.layout.zero_stage == 1 and job.layout.data > 1:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(parameters, kind, **options)
    lists = options.get("foreach") or options.get("fused")
    return kind(_groups(parameters) if lists else parameters, **options)


def _groups(parameters: list[nn.Parameter]) -> Groups:
    """Kernels over lists of tensors cannot mix DTensors and plain ones; a loop takes them in the model's order."""
    wrapped = [p for p in parameters if is_wrapper(type(p))]
    plain = [p for p in parameters if not is_wrapper(type(p))]
    return [{"params": group} for group in (wrapped, plain) if group]


def _kind(job: TrainingJob) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    switches = {"foreach": {"foreach": True}, "for-loop": {"foreach": False}, "fused": {"fused": True}}
    options: dict[str, Any] = dict(switches[job.optimizer.implementation])
    name = job.optimizer.name
    if name == "adamw":
        return torch.optim.AdamW, options
    if name == "adam":
        return torch.optim.Adam, options
    if name == "sgd":
        return torch.optim.SGD, options
    if name == "sgd-momentum":
        return torch.optim.SGD, {**options, "momentum": 0.9}
    if own_adafactor(job):
        from transformers.optimization import Adafactor

        return Adafactor, {"scale_parameter": False, "relative_step": False}
    if name == "adafactor":
        return torch.optim.Adafactor, {"foreach": options.get("foreach", False)}
    raise RefusedStepError(f"torch has no optimizer {name}", "verify with --set training.optimizer=adamw")


def _muon(model: nn.Module, job: TrainingJob) -> list[torch.optim.Optimizer]:
    kind = getattr(torch.optim, "Muon", None)
    if kind is None:
        raise RefusedStepError(f"torch {torch.__version__} has no Muon", "it came with torch 2.9")
    outer = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    head = model.get_output_embeddings()
    outer |= {id(head.weight)} if head is not None else set()
    parameters = trained_parameters(model)
    matrices = [p for p in parameters if p.dim() == 2 and id(p) not in outer]
    chosen = {id(p) for p in matrices}
    rest = [p for p in parameters if id(p) not in chosen]
    foreach = job.optimizer.implementation == "foreach"
    pairs = ((kind, matrices, {"lr": 1e-3}), (torch.optim.AdamW, rest, {"lr": 1e-4, "foreach": foreach}))
    return [_made(job, of, chosen, **options) for of, chosen, options in pairs if chosen]
