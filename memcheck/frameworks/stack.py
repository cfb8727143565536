"""What the engine asks a framework's folder for."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.process_groups import UsedGroups
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.frameworks.host import HostMemory
else:
    Protocol = object  # what a protocol is to a running program


class WorstRank(Protocol):
    """Finds the worst rank of jobs that differ in their batch alone."""

    def rank(self, job: TrainingJob) -> RankEstimate:
        """The rank with the highest peak, with that instant alone."""


class Stack(Record):
    """The doors of one folder. ``arch`` is that of the GPU, as ``sm_90``; None: not known."""

    ranks: Callable[[TrainingJob, Architecture, str | None, bool], tuple[RankEstimate, ...]]
    """One estimate per pipeline rank; the last argument: with the largest tensors and the formulas."""
    worst: Callable[[TrainingJob, Architecture, str | None], WorstRank]
    """What finds the worst rank, given one of the jobs."""
    states_floor: Callable[[TrainingJob, Architecture], int]
    """Bytes that are allocated at every instant of a step on the fullest rank; 0 where no bound is known."""
    trainable: Callable[[TrainingJob, Architecture], tuple[int, int]]
    """Trained parameters of the whole model, and adapter parameters added to it."""
    exchanges: Callable[[TrainingJob], UsedGroups]
    """The process groups that a step uses."""
    host: HostMemory
    """What its processes hold in host memory."""
