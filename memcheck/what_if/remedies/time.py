"""The modelled time of a plan's step, for its rank among others."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.catalog.gpus import find_gpu, gpu_sizes
from memcheck.catalog.types import Gpu
from memcheck.errors import UnsupportedError
from memcheck.job.resolve import Resolved
from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.record import Record
from memcheck.timing.step import step_time
from memcheck.timing.types import StepTime


class Clock(Record):
    """Times the plans of one search against the plan as written."""

    gpu: str
    """The GPU of the plan as written."""
    stand_in: Gpu | None
    """Whose rates are taken for it: the same, unless its own are not known."""
    written: float | None
    """Seconds per token of the plan as written; None where there is no model."""

    def step(self, resolved: Resolved) -> StepTime | None:
        """The step of a plan; None where there is no model of it (unknown rates)."""
        job = resolved.job
        same = resolved.gpu.name == self.gpu and self.stand_in is not None
        return _step(job, self.stand_in if same and self.stand_in is not None else resolved.gpu)

    def slowdown(self, resolved: Resolved) -> float | None:
        """Relative time per token: 0.33 is a third slower."""
        foreign = resolved.gpu.name != self.gpu
        if self.written is None or (foreign and self.stand_in is not None and self.stand_in.name != self.gpu):
            return None
        step = self.step(resolved)
        return None if step is None else _per_token(resolved.job, step) / self.written - 1


def clock_of(resolved: Resolved) -> Clock:
    """The clock of one plan's search. A GPU without rates is timed as one of its architecture that has them."""
    job, gpu = resolved.job, resolved.gpu
    for stand_in in _relatives(gpu):
        step = _step(job, stand_in)
        if step is not None:
            return Clock(gpu.name, stand_in, _per_token(job, step))
    return Clock(gpu.name, None, None)


def _relatives(gpu: Gpu) -> Iterator[Gpu]:
    """The GPU itself, then the catalog's of its architecture."""
    yield gpu
    for each in gpu_sizes() if gpu.arch is not None else ():
        if each.arch == gpu.arch:
            yield find_gpu(each.name)


def _step(job: TrainingJob | InferenceJob, gpu: Gpu) -> StepTime | None:
    try:
        if isinstance(job, TrainingJob):
            return step_time(job, gpu)
        from memcheck.timing.serving import decode_time

        return decode_time(job, gpu)
    except UnsupportedError:
        return None


def _per_token(job: TrainingJob | InferenceJob, step: StepTime) -> float:
    return 1 / (step.tokens_per_second_per_gpu * job.layout.world_size)
