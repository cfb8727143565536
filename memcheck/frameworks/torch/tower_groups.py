"""Groups of a tower's units of which only some modules are of classes that FSDP wraps."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.rank_steps import group_of
from memcheck.frameworks.torch.step_options import UnitGroups
from memcheck.job.types import TrainingJob


def parted_groups(
    job: TrainingJob, tensors: tuple[LocalTensor, ...], own_names: tuple[str, ...], *, trains: bool
) -> tuple[UnitGroups, Group]:
    """The group of a unit's own modules, with the gradients of the rest, and what that rest adds to the root's."""
    own = tuple([t for t in tensors if t.name.startswith(own_names)])
    rest = tuple([t for t in tensors if t not in own])
    trained = group_of(job, tuple([t for t in rest if t.trained]))
    return UnitGroups(group_of(job, own), NO_GROUP._replace(gathered=trained.gathered)), group_of(
        job, rest, trains=trains
    )
