"""A job with any batch: what jobs that differ in their batch alone have in common."""

from __future__ import annotations

from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.remembered import lru_cache


class AnyBatch:
    """Two are the same only if they are one object, so that to look something up by one takes no time."""

    __slots__ = ("_job", "architecture")

    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        self._job, self.architecture = job, architecture

    def of(self, micro_batch_size: int, sequence_length: int, steps: int) -> TrainingJob:
        """The job with a batch. ``steps``: micro-batches."""
        return _with_batch(self._job, micro_batch_size, sequence_length, steps)


def any_batch(job: TrainingJob, architecture: Architecture) -> AnyBatch:
    """The one of all jobs that differ from this one in their batch alone."""
    return _kept(_with_batch(job, 1, 1, 1), architecture)


@lru_cache(maxsize=1024)
def _kept(job: TrainingJob, architecture: Architecture) -> AnyBatch:
    return AnyBatch(job, architecture)


def _with_batch(job: TrainingJob, micro_batch_size: int, sequence_length: int, steps: int) -> TrainingJob:
    return job._replace(
        micro_batch_size=micro_batch_size, sequence_length=sequence_length, gradient_accumulation_steps=steps
    )
