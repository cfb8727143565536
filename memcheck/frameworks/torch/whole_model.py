"""The parameter tensors of a whole pipeline rank, or of a whole model. Nothing is replayed."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.ranks import Part
from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.dtypes import as_stored
from memcheck.frameworks.torch.rank_tensors import (
    as_framework_builds,
    embedding_unit_tensors,
    head_unit_tensors,
    layer_tensors,
    placement_of,
)
from memcheck.frameworks.torch.trained_parts import frozen_layers
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


def tensors_of(job: TrainingJob, architecture: Architecture, part: Part) -> Iterator[tuple[LocalTensor, ...]]:
    """Yield the parameter tensors of one pipeline rank, unit by unit. Equal layers yield the same tuple."""
    architecture, placement, frozen = (
        as_framework_builds(job, architecture),
        placement_of(job),
        frozen_layers(job.freeze),
    )
    if part.embedding:
        yield embedding_unit_tensors(job, architecture, placement)
    layers = architecture.layers()
    tensors_by_layer: dict[tuple[int, bool], tuple[LocalTensor, ...]] = {}
    for index in range(part.first, part.last):
        is_frozen = index in frozen
        kind = (id(layers[index]), is_frozen)
        if kind not in tensors_by_layer:
            tensors_by_layer[kind] = layer_tensors(
                job, layers[index], placement._replace(trained=False) if is_frozen else placement
            )
        yield tensors_by_layer[kind]
    if part.embedding and (architecture.vision is not None or architecture.others or architecture.encoder is not None):
        from memcheck.frameworks.torch.tower_tensors import side_tensors

        yield from (as_stored(job, tensors) for tensors in side_tensors(job, architecture))
    if part.head:
        yield head_unit_tensors(job, architecture, placement, embeds=part.embedding)


def model_tensors(job: TrainingJob, architecture: Architecture) -> Iterator[tuple[LocalTensor, ...]]:
    """The tensors of a whole model that is on one pipeline rank, unit by unit."""
    yield from tensors_of(job, architecture, Part(first=0, last=architecture.num_layers, embedding=True, head=True))


def trainable_parameters(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Return the number of trained parameters of the whole model, and the number of adapter parameters added to it."""
    unsharded_job = job._replace(
        layout=job.layout._replace(tensor=1, sequence=False, pipeline=1, expert=1, expert_tensor=1)
    )
    trained = added = 0
    counts_by_unit: dict[int, tuple[int, int]] = {}
    units = list(model_tensors(unsharded_job, architecture))  # layers that are alike share their tensors
    for tensors in units:
        if id(tensors) not in counts_by_unit:
            counts_by_unit[id(tensors)] = (
                sum([t.numel for t in tensors if t.trained]),
                sum([t.numel for t in tensors if ".lora_" in t.name]),
            )
        unit_counts = counts_by_unit[id(tensors)]
        trained, added = trained + unit_counts[0], added + unit_counts[1]
    return trained, added
