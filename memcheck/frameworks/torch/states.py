"""What is resident on a rank during a step: states, gradient buckets, the engine's buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memcheck.accounts.ranks import Components, ResidentStates, ResidentTensors
from memcheck.accounts.segments import Unfilled, unfilled
from memcheck.accounts.state import LocalTensor, StateBytes, optimizer_state_bytes, orthogonalised, paged_bytes
from memcheck.autograd.tensor import BLOCK_BYTES
from memcheck.frameworks.engine import engine_code
from memcheck.frameworks.torch.fsdp import flattens, wraps
from memcheck.frameworks.torch.optimizer import Mesh, step_temporaries
from memcheck.frameworks.torch.resident import (
    is_updated,
    offloads_states,
    own_adafactor,
    shard_of,
    sharding,
    state_bytes,
    states_dtype,
)
from memcheck.job.types import DTYPE_BYTES, TrainingJob

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memcheck.frameworks.engine import ResidentBuffers

Tensors = Sequence[tuple[LocalTensor, ...]]
"""One entry for each unit; equal units share the tuple."""
Kinds = list[tuple[tuple[LocalTensor, ...], int]]


def resident_states(job: TrainingJob, held: ResidentTensors) -> ResidentStates:
    """The states of a rank of a :func:`state_key` job, and what the optimizer's step adds to them."""
    units: Tensors = held.units  # type: ignore[assignment]
    kinds = counted(held)
    total = StateBytes()
    for tensors, count in kinds:
        total = total.plus(state_bytes(job, tensors), count)
    engine = engine_of(job, units)
    operation = f"{job.optimizer.name} step ({job.optimizer.implementation})"
    partition = _partition(job, units)
    temporaries = 0 if job.optimizer.in_backward else _temporaries(job, kinds, partition)
    if engine is not None:
        # ZeRO-3 partitions the persistent parameters again before it updates them
        temporaries += max(0, engine.step_temporaries - engine.persistent)
    if partition is not None and total.optimizer_states:  # none where they are on the host
        total = total._replace(optimizer_states=partition[1])
    elif job.optimizer.name == "sgd-momentum" and total.optimizer_states and job.layout.tensor > 1:
        from memcheck.frameworks.torch.replicated_table import momentum_of_table

        total = total.plus(StateBytes(optimizer_states=momentum_of_table(job, kinds)))
    return ResidentStates(
        components=_components(job, total, engine, kinds),
        operation=operation,
        temporaries=temporaries,
        paged=_paged(job, kinds),
        unfilled=None if engine is not None or job.expandable_segments else _unfilled(job, kinds),
    )


PACKED = 8
"""How many of equal units are put into segments: what is left repeats."""


def _unfilled(job: TrainingJob, kinds: list[tuple[tuple[LocalTensor, ...], int]]) -> Unfilled:
    """What segments leave unfilled next to parameters, gradients and states.

    FSDP's sharded gradients are parts of one flat block, and so are all of FSDP1's. ZeRO-1 keeps whole states of some
    tensors.
    """
    cut, flat, found = sharding(job), flattens(job), [0, 0, 0]
    for tensors, count in kinds:
        each = [state_bytes(job, tensors)] if flat else [state_bytes(job, [t]) for t in tensors]
        parameters, gradients = [r.parameters + r.adapters for r in each], [r.gradients for r in each]
        if cut.gradients > 1:
            gradients = [sum(gradients)]
        whole = cut.optimizer == cut.gradients
        states = [r.optimizer_states // 2 // BLOCK_BYTES * BLOCK_BYTES for r in each for _ in (0, 1)] if whole else []
        packed = min(count, PACKED)
        first, later = (unfilled(some) for some in (parameters * packed, gradients * packed + states * packed))
        for number, size in enumerate((first, later, (sum(gradients) + sum(states)) * packed)):
            found[number] += size * count // packed
    return Unfilled(*found)


def _paged(job: TrainingJob, kinds: list[tuple[tuple[LocalTensor, ...], int]]) -> int:
    """Bytes of a rank's optimizer states in managed memory."""
    name, cut = job.optimizer.name, sharding(job)
    if not name.startswith("paged-") or job.optimizer.offload != "none":
        return 0
    found = 0
    for tensors, count in kinds:
        trained = (t for t in tensors if is_updated(job, t))
        found += count * sum(paged_bytes(shard_of(job, t, cut.optimizer, cut.flat), name) for t in trained)
    return found


def counted(held: ResidentTensors) -> list[tuple[tuple[LocalTensor, ...], int]]:
    """The tensors of each kind of unit, and how many units are of it."""
    found: dict[int, tuple[Any, int]] = {}
    for tensors, times in held.runs:
        found[id(tensors)] = (tensors, times + found.get(id(tensors), (tensors, 0))[1])
    return list(found.values())


def _components(job: TrainingJob, total: StateBytes, engine: ResidentBuffers | None, kinds: Kinds) -> Components:
    found = [
        ("parameters", total.parameters),
        ("adapters", total.adapters),
        ("master_weights", total.master_weights),
        ("optimizer_states", total.optimizer_states),
    ]
    if job.companions:
        from memcheck.frameworks.torch.reference_models import companion_bytes

        found.append(("parameters", companion_bytes(job)))
    if not wraps(job):
        from memcheck.frameworks.torch.ddp import buckets, waiting

        ddp = buckets(job)
        if ddp.there:
            # DDP keeps its buckets from the first step on; with gradient_as_bucket_view they are the gradients
            size = total.gradients + waiting(job, kinds)
            found.append(("gradients" if ddp.views else "communication_buffers", size))
    if engine is not None:
        found += [
            ("parameters", engine.persistent),
            ("master_weights", engine.master),
            ("gradients", engine.gradients),
            ("communication_buffers", engine.resident),
        ]
    return tuple(found)


Partition = tuple[list[LocalTensor], int]
"""The tensors that ZeroRedundancyOptimizer gives to the rank with most states, and those states' bytes."""


def _temporaries(
    job: TrainingJob, kinds: list[tuple[tuple[LocalTensor, ...], int]], partition: Partition | None
) -> int:
    cut = sharding(job)
    if job.optimizer.offload != "none" or offloads_states(job):
        return 0
    trained: list[tuple[LocalTensor, int]] = []
    for tensors, count in kinds:
        trained += count * [(t, shard_of(job, t, cut.optimizer, cut.flat)) for t in tensors if is_updated(job, t)]
    if flattens(job):
        from memcheck.frameworks.torch.flat_parameters import flat_pieces

        trained = flat_pieces(job, kinds, whole=job.optimizer.implementation == "for-loop")
    if job.framework.masters_adapters:
        trained = [(t._replace(dtype=None), n) for t, n in trained]
    if partition is not None:
        trained = [(t, t.numel) for t in partition[0]]
    name, implementation = job.optimizer.name, job.optimizer.implementation
    if own_adafactor(job):
        from memcheck.frameworks.torch.own_optimizers import adafactor_step

        return adafactor_step([(n, DTYPE_BYTES[t.dtype or job.recipe.params] == 2) for t, n in trained])
    mesh = Mesh(job.layout.shard_group if wraps(job) else 1, job.layout.gpus_per_node)
    temporaries = step_temporaries(trained, name, implementation, job.recipe.optimizer_states, mesh)
    if job.layout.tensor == 1:
        return temporaries
    from memcheck.frameworks.torch.replicated_table import table_slice

    return max(temporaries, table_slice(job, [t for t, _ in trained]))


def _partition(job: TrainingJob, units: Tensors) -> Partition | None:
    """What ZeroRedundancyOptimizer gives to the fullest rank, if it divides the optimizer."""
    if not divides_optimizer(job):
        return None
    return fullest_share(job, [t for unit in units for t in unit])[1:]


def divides_optimizer(job: TrainingJob) -> bool:
    """Whether ZeroRedundancyOptimizer divides the optimizer."""
    return job.layout.zero_stage == 1 and not job.framework.own_engine and job.layout.shard_group > 1


def fullest_share(job: TrainingJob, tensors: Iterable[LocalTensor]) -> tuple[int, list[LocalTensor], int]:
    """The rank whose optimizer states take most, its tensors, and the states' bytes.

    Whole tensors go to ranks, largest first to the emptiest rank (torch/distributed/optim/zero_redundancy_optimizer.py,
    _partition_parameters); of equal ones to the first.
    Muon's matrices and AdamW's other tensors are two optimizers, each with a partition of its own.
    """
    from heapq import heapreplace

    known: dict[int, int] = {}  # layers that are alike share their tensors
    trained = sorted((t for t in tensors if t.trained), key=lambda t: -t.numel)
    ways = min(job.layout.shard_group, max(1, len(trained)))  # ranks beyond get none
    mine: list[list[LocalTensor]] = [[] for _ in range(ways)]
    states = [0] * ways
    split = job.optimizer.name == "muon"
    for part in (True, False) if split else (None,):
        loads = [(0, rank) for rank in range(ways)]  # a heap: the emptiest rank, the first of several
        for t in trained:
            if part is not None and orthogonalised(t) != part:
                continue
            if id(t) not in known:
                known[id(t)] = optimizer_state_bytes(t, t.numel, job.optimizer.name, states_dtype(job, t))
            load, rank = loads[0]
            mine[rank].append(t)
            states[rank] += known[id(t)]
            heapreplace(loads, (load + t.numel, rank))
    rank = max(range(ways), key=states.__getitem__)
    return rank, mine[rank], states[rank]


def engine_of(job: TrainingJob, units: Tensors, *, recomputes: bool | None = None) -> ResidentBuffers | None:
    """The engine's buffers, if an engine runs the step. ``recomputes``: autograd saves nothing of a layer; None: what
    a step gathers is not asked for.
    """
    engine = engine_code(job.framework)
    return None if engine is None else engine.buffers(job, units, recomputes=recomputes)
