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
    """Seconds that one micro-batch spends in forward passes without gradients."""

    arithmetic: float = 0.0
    """Operations that arithmetic bounds."""
    memory: float = 0.0
    """Operations that memory traffic bounds."""
    data: float = 0.0
    """Gathering parameters that FSDP2 shards as one unit: nothing of the pass can hide it."""


NONE = SecondPasses()


class PassCounts(Record):
    """Forward passes without gradients in one micro-batch."""

    own: int
    """Passes of the trained model itself."""
    other: int
    """Passes of a reference or teacher that is a model of its own."""


def passes_of(job: TrainingJob) -> PassCounts:
    """Count the forward passes without gradients in a micro-batch.

    Objectives that compare with a reference run it once. KTO also runs the mismatched pairs of prompt and completion
    that estimate a divergence, through the model and through its reference. Without a copy of its own, the reference
    is the trained model, with its adapters switched off.
    """
    objective = job.objective
    if objective.name not in COMPARED:
        return PassCounts(own=0, other=len(job.auxiliary_models))
    mismatched = 1 if objective.name == "kto" else 0
    of_reference = (1 + mismatched) if objective.reference in SECOND_PASSES else 0
    if job.auxiliary_models:
        return PassCounts(own=mismatched, other=of_reference)
    return PassCounts(own=mismatched + of_reference, other=0)


def second_passes(job: TrainingJob, architecture: Architecture, rates: Rates, sharing: Sharing) -> SecondPasses:
    """Compute the seconds per micro-batch of all forward passes without gradients (:func:`passes_of`)."""
    counts = passes_of(job)
    passes = NONE
    if counts.own:
        passes = _forward(job, architecture, rates, counts.own)
    if counts.other and job.auxiliary_models:
        companion = job.auxiliary_models[0]
        plain = job._replace(method="full", lora=None, architecture=companion.architecture)
        other_model = _forward(plain, companion.architecture, rates, counts.other)
        data = 0.0
        if sharing.precision.stage == 3:
            parameters = _parameters(plain, companion.architecture, rates)
            data = counts.other * gather_seconds(sharing.dense, parameters, sharing.precision)
        passes = SecondPasses(passes.arithmetic + other_model.arithmetic, passes.memory + other_model.memory, data)
    return passes


def _forward(job: TrainingJob, architecture: Architecture, rates: Rates, times: int) -> SecondPasses:
    """Compute the seconds of ``times`` forward passes of a model that is not divided into pipeline stages."""
    model_cost = parts_of(architecture, shape_of(job), rates)
    (stage,) = stages_of(architecture, job, 1)
    arithmetic, memory = model_cost.head.forward
    for count, cost in zip(stage.layers, model_cost.costs, strict=True):
        arithmetic += count * cost.forward.arithmetic
        memory += count * cost.forward.memory
    return SecondPasses(times * arithmetic, times * memory)


def _parameters(job: TrainingJob, architecture: Architecture, rates: Rates) -> int:
    """Count the parameters of a whole model on one rank, before FSDP shards them."""
    model_cost = parts_of(architecture, shape_of(job), rates)
    (stage,) = stages_of(architecture, job, 1)
    layers = sum(
        count * (cost.dense_parameters + cost.expert_parameters)
        for count, cost in zip(stage.layers, model_cost.costs, strict=True)
    )
    return layers + model_cost.head.embedding + model_cost.head.head
