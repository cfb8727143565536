"""A Megatron rank while DistributedDataParallel lays out its buffers: parameters exist twice.

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
    """Replace a step's first instant by the copy into DDP's buffers where that takes more bytes."""
    total = sum([n_bytes for _, n_bytes in components])
    if total <= instants[0].allocated_bytes:
        return instants
    return (
        Instant(name=instants[0].name, operation=BUILDING, allocated_bytes=total, components_bytes=dict(components)),
        *instants[1:],
    )


def buffer_layout_components(job: TrainingJob, resident: ResidentTensors, chunks: tuple[int, ...]) -> Components:
    """Return the bytes per component on one rank while DDP copies its parameters into contiguous buffers.

    ``resident``: the rank's units with their tensors. ``chunks``: number of units of each model chunk. ``job``: as
    ``state_key`` returns it, with only what decides resident bytes. Empty under Megatron-FSDP, which has no such copy.
    """
    if is_sharded(job):
        return ()
    units = iter(resident.units)
    counted_chunks: dict[tuple[int, ...], list[Counted]] = {}  # chunks are often alike
    tensors = []
    for unit_count in chunks:
        chunk_units = list(islice(units, unit_count))
        key = tuple(map(id, chunk_units))
        if key not in counted_chunks:
            counted_chunks[key] = counted(chunk_units)  # type: ignore[arg-type]
        tensors.append(counted_chunks[key])
    return tuple(building(job, tensors).items())


def building(job: TrainingJob, chunks: list[list[Counted]]) -> dict[str, int]:
    """Return the bytes by component at the peak of Megatron's start, when parameters are copied into DDP's buffers.

    Empty: nothing is copied. ``chunks``: the tensors of each model chunk. The dense parameters of a chunk, and its
    experts, are a group each: its parameter and gradient buffers are allocated before its old tensors are freed.
    """
    if not distributed(job) or not code_of(job.framework.style).remaps:
        return {}
    element_bytes = dtypes(job).parameter
    parameters = 0
    groups: list[tuple[Counted, ...]] = []
    for tensors in chunks:
        parameters += sum([t.times * rounded(t.numel * element_bytes) for t in tensors if not t.trained])
        groups += [tuple([t for t in tensors if t.trained and t.expert == expert]) for expert in (False, True)]
    groups = [group for group in groups if group]
    group_sizes: dict[tuple[Counted, ...], tuple[int, StateBytes]] = {}  # many chunks are equal
    for group in groups:
        if group not in group_sizes:
            old_bytes = sum([t.times * rounded(t.numel * element_bytes) for t in group])
            group_sizes[group] = old_bytes, group_bytes(job, list(group), expert=group[0].expert)
    parameters += sum([group_sizes[group][0] for group in groups])
    gradients = peak = 0
    peak_components: dict[str, int] = {}
    for group in groups:
        old_bytes, buffers = group_sizes[group]
        parameters += buffers.parameters
        gradients += buffers.gradients
        if parameters + gradients > peak:
            peak, peak_components = parameters + gradients, {"parameters": parameters, "gradients": gradients}
        parameters -= old_bytes  # the tensors that were copied are freed
    return peak_components
