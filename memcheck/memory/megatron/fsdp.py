"""Megatron-FSDP: what its gather and reduce pipelines hold beside the shards.

Source: Megatron-core ``distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py`` (suggested_communication_unit_size, units
are transformer layers, everything else stays gathered), ``param_and_grad_buffer.py`` (AllGatherPipeline: prefetch until
half the unit size in elements; GradReducePipeline: unreduced buckets are freed only beyond the unit size;
FixedPoolAllocator: two buffers of one unit each).
"""

from __future__ import annotations

from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.memory.megatron.buffers import dtypes, optimizer_ways
from memcheck.memory.state import LocalTensor, Resting
from memcheck.memory.tape.tensor import rounded
from memcheck.memory.units import Unit
from memcheck.record import Record

MINIMUM_UNIT = 1_000_000_000
"""Elements; ``max(1_000_000_000, ...)`` in MegatronFSDP.__init__, although its comment says cap."""


class Extra(Record):
    """Bytes beside a unit's own curve while it runs."""

    forward: int
    backward: int


def strategy(job: TrainingJob) -> str:
    """``optim`` (the plain distributed optimizer) | ``optim_grads`` | ``optim_grads_params``."""
    stated = job.option("data_parallel_sharding_strategy")
    if stated:
        return str(stated)
    return {2: "optim_grads", 3: "optim_grads_params"}.get(job.layout.zero_stage, "optim")


def is_sharded(job: TrainingJob) -> bool:
    """Whether gradients (and parameters) are divided too."""
    return strategy(job) in ("optim_grads", "optim_grads_params")


def resting(job: TrainingJob, tensors: list[LocalTensor]) -> Resting:
    """Shards of parameters, main gradients, master weights and states; dense and expert tensors apart."""
    size, total = dtypes(job), Resting()
    for expert in (False, True):
        numel = sum(t.numel for t in tensors if t.expert == expert)
        if not numel:
            continue
        shard = -(-numel // optimizer_ways(job, expert=expert))
        parameters = shard if strategy(job) == "optim_grads_params" else numel
        total = total.plus(
            Resting(
                parameters=rounded(parameters * size.parameter),
                gradients=rounded(shard * size.gradient),
                master_weights=rounded(int(shard * size.master)),
                optimizer_states=sum(rounded(shard * s) for s in size.states),
            )
        )
    return total


def _elements(unit: Unit) -> int:
    return sum(t.numel for t in unit.tensors)


def unit_size(job: TrainingJob, units: list[Unit]) -> int:
    """``suggested_communication_unit_size`` in elements."""
    stated = job.option("suggested_communication_unit_size")
    if stated:
        return int(str(stated))
    blocks = [u for u in units if u.kind == "block"]
    mean = sum(_elements(u) for u in blocks) // len(blocks) if blocks else 0
    return max(MINIMUM_UNIT, 2 * mean)


def root_bytes(job: TrainingJob, units: list[Unit]) -> int:
    """Parameters outside the units, gathered all step."""
    if strategy(job) != "optim_grads_params":
        return 0
    return rounded(sum(_elements(u) for u in units if u.kind != "block") * DTYPE_BYTES[job.recipe.params])


def extras(job: TrainingJob, units: list[Unit]) -> list[Extra]:
    """For each unit: parameters gathered for it and ahead of it, and gradients that wait to be reduced."""
    size = dtypes(job)
    limit = unit_size(job, units)
    gathers = strategy(job) == "optim_grads_params"
    comm = job.option("megatron_fsdp_grad_comm_dtype")
    gradient = DTYPE_BYTES.get(str(comm), size.gradient) if comm else size.gradient
    blocks = [i for i, u in enumerate(units) if u.kind == "block"]
    count = {i: _elements(units[i]) for i in blocks}
    if job.option("fsdp_double_buffer") or job.option("nccl_ub"):
        return _pooled(units, count, size.parameter if gathers else 0, gradient)
    found: list[Extra] = []
    for i, unit in enumerate(units):
        ahead = [b for b in blocks if b > i]
        behind = [b for b in reversed(blocks) if b < i]
        mine = count.get(i, 0)
        forward = size.parameter * (mine + _prefetched(ahead, count, limit // 2)) if gathers else 0
        # the first pre-backward hook of a unit starts the prefetch: none has run yet under the head
        early = unit.kind in ("block", "embedding")
        backward = size.parameter * (mine + _prefetched(behind, count, limit // 2)) if gathers and early else 0
        waiting = min(limit + (mine if unit.kind == "block" else 0), sum(count[b] for b in blocks if b > i))
        outside = sum(_elements(u) for j, u in enumerate(units) if u.kind != "block" and j >= i)
        found.append(Extra(rounded(forward), rounded(backward + gradient * (mine + waiting + outside))))
    return found


def _pooled(units: list[Unit], count: dict[int, int], parameter: int, gradient: int) -> list[Extra]:
    """``fsdp_double_buffer``: two buffers for parameters and two for gradients stay (FixedPoolAllocator).

    They fit the size that most units have; the others are gathered, and their gradients made, beside the pools.
    """
    sizes = list(count.values())
    common = max(sizes, key=lambda n: (sizes.count(n), n), default=0)
    pool = min(2, sizes.count(common)) * common * (parameter + gradient)
    found: list[Extra] = []
    for i in range(len(units)):
        near = [count[b] for b in (i - 1, i, i + 1) if count.get(b, common) != common]
        outside = sum(_elements(u) for j, u in enumerate(units) if u.kind != "block" and j >= i)
        mine = count.get(i, 0) if count.get(i, common) != common else 0
        forward = pool + parameter * sum(near[:2])
        found.append(Extra(rounded(forward), rounded(forward + gradient * (mine + outside))))
    return found


def _prefetched(order: list[int], count: dict[int, int], limit: int) -> int:
    """Elements gathered ahead: whole units until ``limit`` is reached."""
    total = 0
    for i in order:
        if total >= limit:
            break
        total += count[i]
    return total
