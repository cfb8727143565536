"""Plans whose hardest moment may lie before or after the steps, resolved and priced."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import Resolved, resolve
from memcheck.job.types import TrainingJob
from memcheck.memory.estimate import estimate
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture
from memcheck.plan.read import build_plan

EIGHT = {"gpu": "h100-80gb", "gpus_per_node": 8}


def resolved(
    training: dict[str, object],
    parallelism: dict[str, object] | None = None,
    hardware: dict[str, object] | None = None,
    model: object = "llama-3.1-8b",
) -> Resolved:
    """A plan's job: an 8B Llama on eight H100 unless told otherwise."""
    plan = {
        "memcheck": 1,
        "model": model,
        "hardware": {**EIGHT, **(hardware or {})},
        "parallelism": parallelism or {},
        "training": {"micro_batch_size": 1, "sequence_length": 1024, **training},
    }
    return resolve(build_plan(plan), FRAMEWORKS, base_dir=".")


def job_of(found: Resolved) -> TrainingJob:
    """The training job."""
    assert isinstance(found.job, TrainingJob)
    return found.job


def priced(*args: object, **kwargs: object) -> Estimate:
    """The same plan's estimate."""
    found = resolved(*args, **kwargs)  # type: ignore[arg-type]
    return estimate(found.job, found.gpu, found.overhead)


def parameters(found: Resolved) -> int:
    """Of the whole model."""
    architecture = found.job.architecture
    assert isinstance(architecture, Architecture)
    return count_parameters(architecture)


def host_bytes(answer: Estimate) -> dict[str, int]:
    """Host memory of a node by moment."""
    return {moment.name: moment.bytes for moment in answer.host_moments}
