"""The parameter tensors of a whole pipeline rank, or of a whole model. Nothing is replayed."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.state import LocalTensor
from memcheck.accounts.unit import Part
from memcheck.frameworks.torch.dtypes import as_stored
from memcheck.frameworks.torch.rank_tensors import as_held, closing_tensors, holding_of, layer_tensors, lookup_tensors
from memcheck.frameworks.torch.trained_parts import frozen_layers
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


def tensors_of(job: TrainingJob, architecture: Architecture, part: Part) -> Iterator[tuple[LocalTensor, ...]]:
    """The tensors of one pipeline rank, unit by unit: layers that are alike share theirs."""
    architecture, held, frozen = as_held(job, architecture), holding_of(job), frozen_layers(job.freeze)
    if part.embedding:
        yield lookup_tensors(job, architecture, held)
    layers = architecture.layers()
    known: dict[tuple[int, bool], tuple[LocalTensor, ...]] = {}
    for index in range(part.first, part.last):
        is_frozen = index in frozen
        kind = (id(layers[index]), is_frozen)
        if kind not in known:
            known[kind] = layer_tensors(job, layers[index], held._replace(trained=False) if is_frozen else held)
        yield known[kind]
    if part.embedding and (architecture.vision is not None or architecture.others or architecture.encoder is not None):
        from memcheck.frameworks.torch.tower_tensors import side_tensors

        yield from (as_stored(job, tensors) for tensors in side_tensors(job, architecture))
    if part.head:
        yield closing_tensors(job, architecture, held, embeds=part.embedding)


def model_tensors(job: TrainingJob, architecture: Architecture) -> Iterator[tuple[LocalTensor, ...]]:
    """The tensors of a whole model that is on one pipeline rank, unit by unit."""
    yield from tensors_of(job, architecture, Part(first=0, last=architecture.num_layers, embedding=True, head=True))


def trainable_parameters(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Trained parameters of the whole model, and adapter parameters added to it."""
    whole = job._replace(layout=job.layout._replace(tensor=1, sequence=False, pipeline=1, expert=1, expert_tensor=1))
    trained = added = 0
    known: dict[int, tuple[int, int]] = {}
    every = list(model_tensors(whole, architecture))  # layers that are alike share their tensors
    for tensors in every:
        if id(tensors) not in known:
            known[id(tensors)] = (
                sum([t.numel for t in tensors if t.trained]),
                sum([t.numel for t in tensors if ".lora_" in t.name]),
            )
        one = known[id(tensors)]
        trained, added = trained + one[0], added + one[1]
    return trained, added
