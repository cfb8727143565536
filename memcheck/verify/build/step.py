"""One training step of the plan, in the order in which a training loop writes it.

``build_single`` puts model, wrappers, loss and optimizer together for a rank that holds the whole depth of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from memcheck.job.training import encoder_length, target_length
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.verify.build.loss import Brought, LossOf, autocast, loss_parallel, make_loss
from memcheck.verify.build.model import base_of, build_model, head_of, labels_of, mark_loss
from memcheck.verify.build.pictures import picture_batch, sees
from memcheck.verify.build.tensors import DTYPES
from memcheck.verify.build.trained import adapt, freeze, make_optimizers, trained_parameters
from memcheck.verify.build.wrap import Mesh, Wrapped, recompute, wrap
from memcheck.verify.compare import Watch, enter_loss

ENOUGH_MICRO_BATCHES = 3
"""The second adds to existing gradients, the last synchronises; every other one repeats the second."""


class StepParts(Record):
    """What a step is made of."""

    model: nn.Module
    """What is called."""
    inner: nn.Module
    """What holds the parameters."""
    optimizers: list[torch.optim.Optimizer]
    inputs: list[Any]
    """Token ids and labels of every micro-batch."""
    received: Callable[[], list[Any]]
    """Buffers that pipeline neighbours write to."""
    step: Callable[[], None]
    brought: str = "token ids and labels"
    """What the inputs are."""


def micro_batches(job: TrainingJob) -> int:
    """How many have to be run to see every kind."""
    return min(job.gradient_accumulation_steps, ENOUGH_MICRO_BATCHES)


def token_batches(job: TrainingJob, architecture: Architecture, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random token ids and labels; an encoder's input, and labels of the decoder's length."""
    vocabulary, encoder, batch = architecture.vocab_size, architecture.encoder, job.micro_batch_size
    if job.head.kind != "lm":
        columns = (job.head.columns,) if job.head.columns > 1 else ()
        ids = (*columns, batch, job.sequence_length)
        return [(torch.randint(0, vocabulary, ids), labels_of(job, batch, job.sequence_length)) for _ in range(count)]
    shape = labels = (batch // job.sequences_per_row, job.sequence_length * job.sequences_per_row)
    if encoder is not None:
        shape, labels = (batch, encoder_length(job, encoder)), (batch, target_length(job, encoder))
        if encoder.channels:
            features = (batch, encoder.channels, 2 * shape[1])
            dtype = DTYPES[job.recipe.params]
            return [(torch.randn(features, dtype=dtype), torch.randint(0, vocabulary, labels)) for _ in range(count)]
    return [(torch.randint(0, vocabulary, shape), torch.randint(0, vocabulary, labels)) for _ in range(count)]


def make_step(
    job: TrainingJob,
    wrapped: Wrapped,
    loss_of: LossOf,
    optimizers: list[torch.optim.Optimizer],
    batches: Sequence[tuple[Brought, torch.Tensor]],
    watch: Watch,
    device: str,
) -> Callable[[], None]:
    """Forward, loss and backward of every micro-batch, then the optimizer."""
    count = len(batches)

    def micro_batch(ids: Brought, labels: torch.Tensor) -> None:
        kept: list[Any] = []
        watch.enter("forward")
        with loss_parallel(job):
            with autocast(job, device) if job.head.columns == 1 else nullcontext():
                loss = loss_of(ids, labels, kept)
            if count > 1:
                loss = loss / count
            watch.enter("backward")
            loss.backward()

    def step() -> None:
        for i, (ids, labels) in enumerate(batches):
            with wrapped.synchronised(i == count - 1):
                micro_batch(ids, labels)
        finish(job, wrapped.inner, optimizers, watch)

    return step


def finish(job: TrainingJob, inner: nn.Module, optimizers: list[torch.optim.Optimizer], watch: Watch) -> None:
    """Clip, step, and let go of the gradients."""
    watch.enter("optimizer")
    if job.clip_grad_norm:
        nn.utils.clip_grad_norm_(trained_parameters(inner), 1.0)
    for optimizer in optimizers:
        optimizer.step()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def _ready(model: nn.Module) -> None:
    """Do nothing: the model is ready."""


class DevicePlacement(Record):
    """Devices, and what has to happen between wrapping a model and making its optimizer."""

    device: str = "cpu"
    """Where the step runs."""
    model: str = "cpu"
    """Where the model is first made: ``meta`` when a whole one has no room on the device."""
    ready: Callable[[nn.Module], None] = _ready


HERE = DevicePlacement()


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
