"""Resident tensors of a Megatron rank, kept for every job that differs in its step alone."""

from __future__ import annotations

from memcheck.accounts.moves import Components, ResidentStates, ResidentTensors
from memcheck.frameworks.megatron.building import laying_out
from memcheck.frameworks.megatron.counted import counted
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.job.reduced import state_key as without_step
from memcheck.job.types import TrainingJob
from memcheck.job.unread import UNREAD
from memcheck.remembered import lru_cache


def state_key(job: TrainingJob) -> TrainingJob:
    """The job without what only decides how a step runs.

    Buffers follow from the tensors, the dtypes, the options, the optimizer, and over how many ranks they are divided;
    they read how many data-parallel ranks there are, and nothing of micro-batches.
    """
    layout = job.layout._replace(nodes=UNREAD, gpus_per_node=UNREAD)
    return without_step(job)._replace(gradient_accumulation_steps=UNREAD, layout=layout)


class MegatronStates:
    """What follows from the states of a :func:`state_key` job alone."""

    __slots__ = ("_job", "_known", "_laying")

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._known: dict[ResidentTensors, ResidentStates] = {}
        self._laying: dict[tuple[ResidentTensors, tuple[int, ...]], Components] = {}

    def resident(self, held: ResidentTensors) -> ResidentStates:
        """The states of a rank."""
        found = self._known.get(held)
        if found is None:
            found = self._known[held] = resident_states(self._job, held)
        return found

    def laying(self, held: ResidentTensors, chunks: tuple[int, ...]) -> Components:
        """What lives while DDP lays its buffers out."""
        found = self._laying.get((held, chunks))
        if found is None:
            found = self._laying[held, chunks] = laying_out(self._job, held, chunks)
        return found


@lru_cache(maxsize=1024)
def states_of(job: TrainingJob) -> MegatronStates:
    """The states of a :func:`state_key` job; equal jobs share them."""
    return MegatronStates(job)


def resident_states(job: TrainingJob, held: ResidentTensors) -> ResidentStates:
    """The states of a rank of a :func:`state_key` job, and what the optimizer's step adds to them."""
    tensors = counted(held.units)  # type: ignore[arg-type]
    return code_of(job.framework.style).resident(job, tensors)
