"""The parameters of a whole model, unit by unit: of what a full training does not ask, and nothing is replayed."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.end_tensors import output_tensors, table_tensors
from memcheck.frameworks.torch.kept_wide import kept_names, widened
from memcheck.frameworks.torch.trained_parts import frozen_layers, is_tied
from memcheck.frameworks.torch.units import as_built, base_setting, block_tensors_on_rank
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


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


def model_tensors(job: TrainingJob, a: Architecture) -> Iterator[tuple[LocalTensor, ...]]:
    """The parameter tensors of a whole model that is on one pipeline rank, unit by unit. Nothing is replayed."""
    a = as_built(job, a)
    base, frozen = base_setting(job, a, None), frozen_layers(job.freeze)
    kept = kept_names(job)
    yield widened(table_tensors(job, a, base.tensor, base.trained and "embed" not in job.freeze), kept)
    for i, block in enumerate(a.layers()):
        trained = base.trained and i not in frozen
        tensors = block_tensors_on_rank(
            block, base.tensor, base.expert, base.expert_tensor, trained, base.frozen, base.adapter
        )
        yield widened(tensors, kept)
    if a.vision is not None or a.others or a.encoder is not None:
        from memcheck.frameworks.torch.tower_tensors import side_tensors

        yield from (widened(tensors, kept) for tensors in side_tensors(job, a, base))
    yield widened(output_tensors(job, a, base.tensor, is_tied(a, base.tensor), base.trained), kept)
