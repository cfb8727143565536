"""Groups of a tower's layers of which attention alone is a module that FSDP wraps."""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.rank_steps import group_of
from memcheck.frameworks.torch.step_options import UnitGroups
from memcheck.job.types import TrainingJob

ATTENTION = ("self_attn.", "attention.")
"""How names of a layer's attention begin."""


def parted_groups(
    job: TrainingJob, tensors: tuple[LocalTensor, ...], *, trains: bool
) -> tuple[UnitGroups, Group]:
    """The group of a layer's attention, with the gradients of the rest of it, and what that rest adds to the root's."""
    own = tuple([t for t in tensors if t.name.startswith(ATTENTION)])
    rest = tuple([t for t in tensors if t not in own])
    trained = group_of(job, tuple([t for t in rest if t.trained]))
    return UnitGroups(group_of(job, own), NO_GROUP._replace(gathered=trained.gathered)), group_of(
        job, rest, trains=trains
    )
