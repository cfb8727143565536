"""What the engine asks of Megatron-LM."""

from __future__ import annotations

from memcheck.accounts.estimate import RankEstimate
from memcheck.frameworks.megatron import floor
from memcheck.frameworks.megatron.adapters import adapter_parameters
from memcheck.frameworks.megatron.host import HOST
from memcheck.frameworks.megatron.ranks import MegatronWorst, megatron_ranks
from memcheck.frameworks.megatron.stages import exchanges
from memcheck.frameworks.megatron.workspaces import Device
from memcheck.frameworks.registry import Stack, WorstRank
from memcheck.frameworks.torch.tower_tensors import trainable_parameters
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture


def ranks(job: TrainingJob, architecture: Architecture, arch: str | None, inventory: bool) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank; Transformer Engine chooses its kernels by the GPU."""
    return megatron_ranks(job, architecture, Device(arch), inventory=inventory)


def worst(job: TrainingJob, architecture: Architecture, arch: str | None) -> WorstRank:
    """What finds the worst rank."""
    return MegatronWorst(job, architecture, Device(arch))


def trainable(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Count the trained parameters of the whole model, and the adapter parameters added to it."""
    if job.lora is None:
        return trainable_parameters(job, architecture)

    added = adapter_parameters(job, architecture)
    return added, added


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Return a lower bound of the peak in bytes, from states alone, with which searches rule out plans."""
    return floor.states_floor(job, architecture)


STACK = Stack(
    ranks=ranks,
    worst=worst,
    states_floor=states_floor,
    trainable=trainable,
    exchanges=exchanges,
    host=HOST,
)
