"""Forward passes without gradients that a micro-batch runs in addition to its own: of a reference, and those that
estimate a divergence.
"""

from __future__ import annotations

from memcheck.job.types import COMPARED, SECOND_PASSES, TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.timing.data_parallel import gather_seconds
from memcheck.timing.model import parts_of, shape_of, stages_of
from memcheck.timing.rates import Rates
from memcheck.timing.stage import Sharing


class SecondPasses(Record):
    """Seconds that a micro-batch spends in them."""

    arithmetic: float = 0.0
    memory: float = 0.0
    data: float = 0.0
    """Gathering parameters that FSDP2 shards as one unit: nothing of the pass can hide it."""


NONE = SecondPasses()


def passes_of(job: TrainingJob) -> tuple[int, int]:
    """Forward passes without gradients in a micro-batch: of the model itself, and of another model.

    KTO also runs mismatched pairs, once through each (TRL ``kto_trainer.py``, ``_compute_kl_logps``).
    """
    objective = job.objective
    if objective.name not in COMPARED:
        return 0, len(job.auxiliary_models)
    mismatched = 1 if objective.name == "kto" else 0
    compared = (1 + mismatched) if objective.reference in SECOND_PASSES else 0
    return (mismatched, compared) if job.auxiliary_models else (mismatched + compared, 0)


def second_passes(job: TrainingJob, architecture: Architecture, r: Rates, sharing: Sharing) -> SecondPasses:
    """The seconds of them all."""
    own, others = passes_of(job)
    found = NONE
    if own:
        found = _forward(job, architecture, r, own)
    if others and job.auxiliary_models:
        companion = job.auxiliary_models[0]
        plain = job._replace(method="full", lora=None, architecture=companion.architecture)
        theirs = _forward(plain, companion.architecture, r, others)
        data = 0.0
        if sharing.precision.stage == 3:
            size = _parameters(plain, companion.architecture, r)
            data = others * gather_seconds(sharing.dense, size, sharing.precision)
        found = SecondPasses(found.arithmetic + theirs.arithmetic, found.memory + theirs.memory, data)
    return found


def _forward(job: TrainingJob, architecture: Architecture, r: Rates, times: int) -> SecondPasses:
    parts = parts_of(architecture, shape_of(job), r)
    (stage,) = stages_of(architecture, job, 1)
    arithmetic, memory = parts.head.forward
    for count, cost in zip(stage.layers, parts.costs, strict=True):
        arithmetic += count * cost.forward.arithmetic
        memory += count * cost.forward.memory
    return SecondPasses(times * arithmetic, times * memory)


def _parameters(job: TrainingJob, architecture: Architecture, r: Rates) -> int:
    parts = parts_of(architecture, shape_of(job), r)
    (stage,) = stages_of(architecture, job, 1)
    layers = sum(
        count * (cost.dense_parameters + cost.expert_parameters)
        for count, cost in zip(stage.layers, parts.costs, strict=True)
    )
    return layers + parts.head.embedding + parts.head.head
