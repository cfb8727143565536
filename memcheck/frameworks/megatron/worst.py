"""The worst rank of a Megatron job, with its highest instant alone: what searches and grids look at."""

from __future__ import annotations

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.moves import ResidentStates, highest, peak_on, with_resident
from memcheck.frameworks.megatron.building import with_building
from memcheck.frameworks.megatron.ranks import MegatronPeak, laying, motions, settles, step_key
from memcheck.frameworks.megatron.states import state_key, states_of
from memcheck.frameworks.megatron.workspaces import Device
from memcheck.job.any_batch import AnyBatch, any_batch
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture
from memcheck.remembered import lru_cache


class MegatronWorst:
    """Finds the worst rank of jobs that differ in their batch alone."""

    __slots__ = ("_any_batch", "_device", "_settles", "_states")

    def __init__(self, job: TrainingJob, architecture: Architecture, device: Device) -> None:
        """``job``: any of the jobs, which differ in their batch alone.

        Raises:
            UnsupportedError: activations are offloaded, or the pipeline layout does not fit the ranks.
        """
        self._device, self._states = device, states_of(state_key(job))
        self._any_batch = any_batch(step_key(job, architecture.num_layers), architecture)
        self._settles = settles(job, architecture.num_layers)

    def rank(self, job: TrainingJob) -> RankEstimate:
        """The rank with the highest peak, the first of equal ones, with that instant alone.

        Among ranks that hold the same the first has the most in flight, so that the others need not be looked at.
        """
        states, steps = self._states, self._settles(job.gradient_accumulation_steps)
        best: tuple[int, MegatronPeak, ResidentStates, bool] | None = None
        for motion in _motions(self._any_batch, self._device, job.micro_batch_size, job.sequence_length, steps):
            rest = states.resident(motion.held)
            made = sum([n_bytes for _, n_bytes in laying(job, states, motion)])
            if best is not None and made <= best[0] and _most(rest, motion) <= best[0]:
                continue
            peak = highest(rest, motion.tops, motion.always)
            if best is None or max(peak, made) > best[0]:
                best = (max(peak, made), motion, rest, made > peak)
        assert best is not None  # noqa: S101 - a job has ranks
        _, motion, rest, is_laying = best
        moments = motion.moments() if is_laying else (motion.step.moment(peak_on(rest, motion.tops)),)
        instants = with_resident(rest, moments, motion.always)
        if is_laying:
            instants = with_building(laying(job, states, motion), instants)[:1]
        return RankEstimate(motion.rank, instants, motion.parameters)


def _most(rest: ResidentStates, motion: MegatronPeak) -> float:
    """Bytes that the rank's peak does not exceed."""
    beside = sum([n_bytes for _, n_bytes in (*rest.components, *motion.always)])
    return beside + rest.temporaries + motion.step.ceiling


@lru_cache(maxsize=2048)
def _motions(
    job: AnyBatch, device: Device, micro_batch_size: int, sequence_length: int, steps: int
) -> tuple[MegatronPeak, ...]:
    """The steps of the ranks that may be the fullest; jobs that differ in other sizes share them.

    ``steps``: micro-batches, as many as :func:`memcheck.frameworks.megatron.ranks.settles` leaves.
    """
    found = job.of(micro_batch_size, sequence_length, steps)
    return motions(found, job.architecture, device, every_rank=False)
