"""The plan's optimizer as torch implements it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memcheck.frameworks.torch.resting import own_adafactor
from memcheck.job.types import TrainingJob
from memcheck.verify.build.subclass import is_wrapper
from memcheck.verify.build.trained import trained_parameters
from memcheck.verify.errors import RefusedStepError

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
