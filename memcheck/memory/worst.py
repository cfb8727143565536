"""The worst pipeline rank of a training job, with its highest instant alone: what searches and grids look at."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.moves import laid_on, peak_on
from memcheck.frameworks.torch.pipelining import fullest, parts
from memcheck.job.types import TrainingJob
from memcheck.memory.any_batch import AnyBatch, any_batch
from memcheck.memory.motion import (
    Motion,
    OpenRanks,
    States,
    closed_motion,
    open_motion,
    settled,
    stateless,
    states_of,
    undivided,
)
from memcheck.memory.rests import timeless
from memcheck.memory.training import PeakRank, is_fixed_by_step, laid, peak_rank
from memcheck.models.types import Architecture


class Worst:
    """Finds the worst rank of jobs that differ in their batch alone."""

    __slots__ = ("_any_batch", "_architecture", "_numbers", "_states")

    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        """``job``: any of them."""
        self._architecture = architecture
        self._numbers = fullest(job, _contents(architecture, job.layout.pipeline))
        self._any_batch: dict[str, AnyBatch] = {}
        self._states: dict[bool, States] = {}

    def rank(self, job: TrainingJob) -> RankEstimate:
        """The rank with the highest peak, the first of equal ones, with that instant alone."""
        states = self._states_of(job)
        motions = self._closed(job) if job.framework == "deepspeed" else self._open(job, states)
        found = [peak_rank(job, states, *some) for some in zip(self._numbers, motions, strict=True)]
        host_bytes = max([rank.motion.host_bytes for rank in found])
        if is_fixed_by_step(job):
            worst = max(found, key=lambda rank: rank.peak) if len(found) > 1 else found[0]
            return _at_peak(worst, host_bytes)
        every = max([laid(job, rank) for rank in found], key=lambda rank: rank.peak.allocated_bytes)
        return every._replace(instants=(every.peak,), host_bytes=host_bytes)

    def _states_of(self, job: TrainingJob) -> States:
        several = job.gradient_accumulation_steps > 1  # all that states depend on of a batch
        known = self._states.get(several)
        if known is None:
            known = self._states[several] = states_of(timeless(job))
        return known

    def _closed(self, job: TrainingJob) -> list[list[Motion]]:
        """Of every rank that may be the worst, its step under each behaviour of PyTorch."""
        each = [stateless(job, torch) for torch in job.torch]
        return [[closed_motion(one, self._architecture, number) for one in each] for number in self._numbers]

    def _open(self, job: TrainingJob, states: States) -> list[list[Motion]]:
        """The same from walks for all sizes."""
        batch = job.micro_batch_size, job.sequence_length, settled(job)
        ranks = [_open_ranks(self._with_any_batch(job, torch), *batch) for torch in job.torch]
        return [[open_motion(some, states, number) for some in ranks] for number in self._numbers]

    def _with_any_batch(self, job: TrainingJob, torch: str) -> AnyBatch:
        known = self._any_batch.get(torch)
        if known is None:
            known = self._any_batch[torch] = any_batch(undivided(stateless(job, torch)), self._architecture)
        return known


@lru_cache(maxsize=2048)
def _open_ranks(job: AnyBatch, micro_batch_size: int, sequence_length: int, steps: int) -> OpenRanks:
    """Kept. ``steps``: :func:`memcheck.memory.motion.settled`."""
    return OpenRanks(job.of(micro_batch_size, sequence_length, steps), job.architecture)


def _at_peak(rank: PeakRank, host_bytes: int) -> RankEstimate:
    """The rank with its highest instant alone."""
    found = rank.motion
    instants = laid_on(rank.rest, (found.moment(peak_on(rank.rest, found.tops)),), rank.beside)
    return RankEstimate(rank.number, instants, found.parameters, host_bytes=host_bytes)


@lru_cache(maxsize=256)
def _contents(architecture: Architecture, ways: int) -> tuple[Hashable, ...]:
    """What tells pipeline ranks apart, beside the micro-batches that they hold."""
    layers = tuple(map(id, architecture.layers()))
    found = parts(architecture.num_layers, ways)
    return tuple((p.embedding, p.head, p.first > 0, layers[p.first : p.last]) for p in found)
