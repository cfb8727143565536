"""A Megatron rank while DistributedDataParallel lays out its buffers: parameters are there twice.

Layers are made on the GPU first, for all chunks. Then each chunk's buffers are allocated whole, one for dense and one
for expert parameters, each with room for parameters and gradients. After that the parameters are copied into them one
by one and freed (Megatron-core distributed/param_and_grad_buffer.py, ``_ParamAndGradBuffer.__init__``: ``param_data``,
``grad_data``, then ``param.data = new_param_data``; training/models/dist_utils.py for the order). Only the distributed
optimizer remaps parameters. Master weights and optimizer states come later: over many ranks they take less than this.
"""

from __future__ import annotations

from itertools import islice

from memcheck.accounts.estimate import Instant
from memcheck.accounts.ranks import Components, ResidentTensors
from memcheck.accounts.state import StateBytes
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.megatron.buffers import distributed, dtypes, group_bytes
from memcheck.frameworks.megatron.counted import Counted, counted
from memcheck.frameworks.megatron.fsdp import is_sharded
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.job.types import TrainingJob

BUILDING = "copying parameters into DDP's buffers"


def with_building(components: Components, instants: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """The instants of a step whose first one is where more is there while the buffers are laid out."""
    total = sum([n_bytes for _, n_bytes in components])
    if total <= instants[0].allocated_bytes:
        return instants
    return (
        Instant(name=instants[0].name, operation=BUILDING, allocated_bytes=total, components_bytes=dict(components)),
        *instants[1:],
    )


def laying_out(job: TrainingJob, held: ResidentTensors, chunks: tuple[int, ...]) -> Components:
    """Components of a rank of a ``state_key`` job while its buffers are laid out. ``chunks``: the units of each."""
    if is_sharded(job):
        return ()
    units = iter(held.units)
    known: dict[tuple[int, ...], list[Counted]] = {}  # chunks are often alike
    tensors = []
    for n in chunks:
        mine = list(islice(units, n))
        one = tuple(map(id, mine))
        if one not in known:
            known[one] = counted(mine)  # type: ignore[arg-type]
        tensors.append(known[one])
    return tuple(building(job, tensors).items())


def building(job: TrainingJob, chunks: list[list[Counted]]) -> dict[str, int]:
    """Components at the highest moment; none where parameters are not copied. ``chunks``: the tensors of each."""
    if not distributed(job) or not code_of(job.framework.style).remaps:
        return {}
    item = dtypes(job).parameter
    groups = [
        tuple([t for t in tensors if t.trained and t.expert == expert])
        for tensors in chunks
        for expert in (False, True)
    ]
    known: dict[tuple[Counted, ...], tuple[int, StateBytes]] = {}  # chunks are often alike
    for group in filter(None, groups):
        if group not in known:
            made = sum([t.times * rounded(t.numel * item) for t in group])
            known[group] = made, group_bytes(job, list(group), expert=group[0].expert)
    parameters = sum([t.times * rounded(t.numel * item) for tensors in chunks for t in tensors if not t.trained])
    parameters += sum([known[group][0] for group in groups if group])
    gradients = most = 0
    best: dict[str, int] = {}
    for group in filter(None, groups):
        made, buffers = known[group]
        parameters, gradients = parameters + buffers.parameters, gradients + buffers.gradients
        if parameters + gradients > most:
            most, best = parameters + gradients, {"parameters": parameters, "gradients": gradients}
        parameters -= made  # the group's own are freed
    return best
