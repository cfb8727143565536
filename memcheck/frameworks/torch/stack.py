"""What the engine asks of torch's own data parallelism over transformers' models."""

from __future__ import annotations

from memcheck.accounts.estimate import RankEstimate
from memcheck.frameworks.stack import Stack, WorstRank
from memcheck.frameworks.torch.groups import MESH, MeshGroups
from memcheck.frameworks.torch.host import HOST
from memcheck.frameworks.torch.ranks import Worst, training_ranks
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


def ranks(job: TrainingJob, architecture: Architecture, _arch: str | None, inventory: bool) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank; the GPU decides nothing."""
    return training_ranks(job, architecture, inventory=inventory)


def worst(job: TrainingJob, architecture: Architecture, _arch: str | None) -> WorstRank:
    """What finds the worst rank; the GPU decides nothing."""
    return Worst(job, architecture)


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Return a lower bound of the peak in bytes, from states alone, with which searches rule out plans."""
    from memcheck.frameworks.torch.shards import states_floor as found

    return found(job, architecture)


def trainable(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Count the trained parameters, which differ from all where something is frozen or adapted, and the adapters'
    own.
    """
    from memcheck.frameworks.torch.whole_model import trainable_parameters

    return trainable_parameters(job, architecture)


def exchanged(job: TrainingJob) -> MeshGroups:
    """Return the process groups of the device mesh, with the buffers of DeepEP or HybridEP if one dispatches tokens."""
    if job.layout.expert == 1 or job.option("dispatcher", "torch") == "torch":
        return MESH
    from memcheck.frameworks.torch.groups import all_to_all_buffers

    return all_to_all_buffers(job) or MESH


STACK = Stack(
    ranks=ranks,
    worst=worst,
    states_floor=states_floor,
    trainable=trainable,
    exchanges=exchanged,
    host=HOST,
)
