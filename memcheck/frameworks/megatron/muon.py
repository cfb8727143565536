"""Muon under Megatron: momenta of whole matrices, and Adam for what is none.

Sources: Megatron-core ``optimizer/__init__.py`` (_get_megatron_emerging_optimizer: embeddings, the output layer and
vectors go to Adam), ``optimizer/layer_wise_optimizer.py`` (LayerWiseDistributedOptimizer: a matrix belongs to one
data-parallel rank, so that buffers are padded to the fullest), ``optimizer/emerging_optimizers.py``
(TensorParallelMuon); NVIDIA-NeMo/Emerging-Optimizers ``orthogonalized_optimizers/muon_utils.py`` (newton_schulz_tp,
``duplicated``: each rank orthogonalizes the matrix of all tensor ranks, in bf16 next to an fp32 copy).
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

from memcheck.accounts.state import StateBytes
from memcheck.autograd.tensor import rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron import buffers
from memcheck.frameworks.megatron.counted import Counted, elements
from memcheck.job.types import TrainingJob
from memcheck.remembered import lru_cache

FULLEST = 1.3
"""``1 + _NUMEL_EPSILON``: how much more than its share of a bucket a rank gets, if another has room."""
LEAST_FULL = 0.9
"""``PADDING_FLOOR``"""
LEAST_BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
"""Smallest bucket, and smallest bucket per data-parallel rank, in elements (distributed_data_parallel.py)."""


def demand_muon(job: TrainingJob) -> None:
    """Check that Megatron accepts the job's settings with Muon.

    Raises:
        UnsupportedError: Megatron stops (``training/arguments.py``; _get_megatron_emerging_optimizer).
    """
    if job.layout.zero_stage > 1:
        message = "Megatron-FSDP has no Muon"
        raise UnsupportedError(message, "write `zero_stage: 1`", "/parallelism/zero_stage")
    if job.recipe.compute == "fp16":
        message = "Megatron's Muon does not train in fp16"
        raise UnsupportedError(message, "write `precision: bf16-mixed`", "/training/precision")
    if job.option("num_distributed_optimizer_instances") not in (None, 1):
        message = "Megatron's Muon has one instance of the distributed optimizer"
        raise UnsupportedError(message, "leave it out", "/training/options/num_distributed_optimizer_instances")


def muon_bytes(job: TrainingJob, tensors: list[Counted], *, expert: bool) -> StateBytes:
    """Resident bytes of trained parameters that share an optimizer."""
    adam = job._replace(optimizer=job.optimizer._replace(name="adamw"))
    others = [t for t in tensors if not t.rows]
    matrices = [t for t in tensors if t.rows]
    found = buffers.group_bytes(adam, others, expert=expert) if others else StateBytes()
    if not matrices:
        return found
    sgd = job._replace(optimizer=job.optimizer._replace(name="sgd-momentum"))
    if not buffers.distributed(job):
        apart = buffers.group_bytes(sgd, matrices, expert=expert)
        gradients = rounded(elements(tensors) * buffers.dtypes(job).gradient)  # all are in one buffer
        return found.plus(apart)._replace(gradients=gradients)
    size, ways = buffers.dtypes(sgd), buffers.optimizer_ways(job, expert=expert)
    least = max(LEAST_BUCKET, BUCKET_PER_RANK * ways) if job.option("overlap_grad_reduce") else 0
    stated = job.option("ddp_bucket_size")
    align = buffers.HIGH_BANDWIDTH_ALIGNMENT if job.option("ddp_pad_buckets_for_high_nccl_busbw") else 1
    rows = tuple([(t.numel, t.rows, t.times) for t in matrices])
    shard, fullest = fullest_shard(rows, ways, int(str(stated)) if stated and least else least, align)
    return found.plus(
        StateBytes(
            parameters=rounded(ways * shard * size.parameter),
            gradients=rounded(ways * shard * size.gradient),
            master_weights=int(fullest * size.master),
            optimizer_states=sum(fullest * s for s in size.states),
        )
    )


def muon_temporaries(job: TrainingJob, tensors: list[Counted]) -> int:
    """What the step of the largest matrix takes while the result for the previous one is live.

    The parts of all tensor ranks, gathered and joined, and the joined one divided by its norm, in fp32, while that is
    cast to bf16; or a product of each iteration together with its two squares.
    """
    most = 0
    for t in tensors:
        if t.trained and t.rows:
            ways = job.layout.expert_tensor if t.expert else job.layout.tensor
            whole, columns = t.numel * ways, t.numel // t.rows
            square = min(t.rows * ways, columns) ** 2  # of the smaller dimension, at most
            most = max(most, 4 * t.numel + max(14 * whole, 12 * whole + 4 * square))
    return most


@lru_cache(maxsize=64)
def fullest_shard(matrices: tuple[tuple[int, int, int], ...], ways: int, least: int, align: int = 1) -> tuple[int, int]:
    """Elements of one rank's part of the buffer, and of the matrices of the rank that has most.

    ``matrices``: elements, rows, and how many there are, which are taken to lie layer by layer. ``least``: of a bucket;
    0: there is one. LayerWiseDistributedOptimizer._compute_per_buffer_param_layout.
    """
    order = [(n, rows) for i in range(max(m[2] for m in matrices)) for n, rows, times in matrices if i < times]
    divisor = math.lcm(64, math.lcm(ways, 128, align) // ways)
    ranks = min(ways, len(order))  # no other is given one
    loads, mine, total = [0.0] * ranks, [0] * ranks, 0
    for bucket in _buckets(order[::-1], ways, least, divisor):
        parts, fullest = dealt(bucket, loads, sum(n for n, _ in bucket) / ways * FULLEST)
        for rank, n in parts.items():
            mine[rank] += n
        total += _padded(fullest, divisor)
    return total, max(mine)


def dealt(bucket: list[tuple[int, int]], loads: list[float], cap: float) -> tuple[dict[int, int], int]:
    """The elements that ranks are given of a bucket, and those of the largest part with its padding.

    A matrix goes to the rank with the least work that has room below ``cap``; if none has, to the one that has least.
    ``loads``: the work of each rank so far, which is added to. Of equal ranks the first counts.
    """
    cursors, elements = [0] * len(loads), dict[int, int]()
    by_load = [(load, rank) for rank, load in enumerate(loads)]
    heapify(by_load)
    by_cursor = [(0, rank) for rank in range(len(loads))]
    for n, rows in sorted(bucket, key=_cost, reverse=True):
        while cursors[by_cursor[0][1]] != by_cursor[0][0]:
            heappop(by_cursor)
        rank, passed = by_cursor[0][1], list[tuple[float, int]]()
        while _padded(by_cursor[0][0], 64) + n <= cap:  # somebody has room
            load, rank = heappop(by_load)
            if loads[rank] != load:
                continue
            if _padded(cursors[rank], 64) + n <= cap:
                break
            passed.append((load, rank))
        for each in passed:
            heappush(by_load, each)
        cursors[rank] = _padded(cursors[rank], 64) + n
        loads[rank] += _cost((n, rows))
        elements[rank] = elements.get(rank, 0) + n
        heappush(by_load, (loads[rank], rank))
        heappush(by_cursor, (cursors[rank], rank))
    return elements, max(cursors)


def _cost(matrix: tuple[int, int]) -> int:
    """What an iteration costs (``_ns_compute_cost``)."""
    numel, rows = matrix
    return numel * min(rows, numel // rows)


def _buckets(order: list[tuple[int, int]], ways: int, least: int, divisor: int) -> list[list[tuple[int, int]]]:
    """A bucket is closed when it is large enough and the next matrix would make it larger still."""
    if not least:
        return [order]
    found: list[list[tuple[int, int]]] = [[]]
    parts, fullest, elements, largest = [0] * min(ways, len(order)), 0, 0, 0
    for n, rows in order:
        enough = bool(found[-1]) and elements >= max(least, int(ways * largest * LEAST_FULL))
        if enough and _padded(parts[0], 64) + n > _padded(fullest, divisor):
            found.append([])
            parts, fullest, elements, largest = [0] * len(parts), 0, 0, 0
        found[-1].append((n, rows))
        part = _padded(heappop(parts), 64) + n
        heappush(parts, part)
        fullest, elements, largest = max(fullest, part), elements + n, max(largest, n)
    return found


def _padded(count: int, divisor: int) -> int:
    return -(-count // divisor) * divisor
