"""A rank that holds the whole depth of the model: model, wrappers, loss and optimizer put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.verify.build.loss import Brought, make_loss
from memcheck.verify.build.model import base_of, build_model, head_of
from memcheck.verify.build.optimizer import make_optimizers
from memcheck.verify.build.pictures import picture_batch, sees
from memcheck.verify.build.place import HERE, DevicePlacement
from memcheck.verify.build.step import StepParts, make_step, micro_batches, token_batches
from memcheck.verify.build.trained import adapt, freeze
from memcheck.verify.build.wrap import Mesh, recompute, wrap
from memcheck.verify.watch import Watch, enter_loss


def build_single(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    mesh: Mesh,
    watch: Watch,
    place: DevicePlacement = HERE,
) -> StepParts:
    """Everything that one step needs."""
    with torch.device(place.model):
        model = build_model(job, architecture, config)
    freeze(model, architecture, job.freeze)
    if job.lora is not None:
        model = adapt(model, job, job.lora)
    recompute(model, job)
    wrapped = wrap(model, job, architecture, mesh)
    place.ready(wrapped.model)
    optimizers = make_optimizers(wrapped.inner, job)
    if job.head.kind != "lm":
        from memcheck.verify.build.task import mark_loss

        mark_loss(job, wrapped.inner, watch)
    elif job.loss.kind in ("standard", "vocab-parallel"):
        head_of(wrapped.inner).register_forward_pre_hook(lambda *_: enter_loss(watch))
    loss_of = make_loss(job, wrapped.model, wrapped.inner, watch)
    # one micro-batch's tokens at a time, as a training loop moves them to the device
    batches = _batches(job, architecture, wrapped.inner)
    step = make_step(job, wrapped, loss_of, optimizers, batches, watch, place.device)
    return StepParts(
        model=wrapped.model,
        inner=wrapped.inner,
        optimizers=optimizers,
        inputs=list(batches),
        received=list,
        step=step,
        brought="pictures, token ids and labels" if sees(job, architecture) else "token ids and labels",
    )


def _batches(job: TrainingJob, architecture: Architecture, model: Any) -> Sequence[tuple[Brought, torch.Tensor]]:
    if architecture.vision is not None and sees(job, architecture):
        return [picture_batch(job, architecture.vision, base_of(model).config)] * micro_batches(job)
    return token_batches(job, architecture, 1) * micro_batches(job)
