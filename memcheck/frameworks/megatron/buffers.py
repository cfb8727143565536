"""Resident tensors of a Megatron rank: contiguous buffers, main gradients, master weights, optimizer states.

Sources: Megatron-core ``distributed/param_and_grad_buffer.py``, ``optimizer/param_layout.py`` (alignment: parameters to
64 elements, buckets to lcm(ranks, 128)), ``optimizer/distrib_optimizer.py``, ``optimizer/optimizer.py``
(Float16OptimizerWithFloat16Params), ``docs/user-guide/features/dist_optimizer.md``.

Muon under Megatron: momenta of whole matrices, and Adam for what is none.

Sources: Megatron-core ``optimizer/__init__.py`` (_get_megatron_emerging_optimizer: embeddings, the output layer and
vectors go to Adam), ``optimizer/layer_wise_optimizer.py`` (LayerWiseDistributedOptimizer: a matrix belongs to one
data-parallel rank, so that buffers are padded to the fullest), ``optimizer/emerging_optimizers.py``
(TensorParallelMuon); NVIDIA-NeMo/Emerging-Optimizers ``orthogonalized_optimizers/muon_utils.py`` (newton_schulz_tp,
``duplicated``: each rank orthogonalizes the matrix of all tensor ranks, in bf16 next to an fp32 copy).
"""

from __future__ import annotations

import math
from functools import lru_cache
from heapq import heapify, heappop, heappush

from memcheck.accounts.state import STATES_PER_PARAMETER, StateBytes
from memcheck.autograd.tensor import rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.counted import Counted, elements
from memcheck.frameworks.megatron.setting import fp8_format
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.job.versions import is_before
from memcheck.record import Record

PARAMETER_ALIGNMENT = 64
BUCKET_ALIGNMENT = 128
HIGH_BANDWIDTH_ALIGNMENT = 2**16
FUSED_SCALES_SINCE = (2, 14)
"""TransformerEngine, whose Adam takes two states in bf16 as they are from then on."""


class Dtypes(Record):
    """Bytes of one element of each state."""

    parameter: int
    gradient: int
    master: float
    """0 when the parameters are their own master copy; 2 when only the remainders of fp32 are stored."""
    states: tuple[int, ...]


def distributed(job: TrainingJob) -> bool:
    """Whether optimizer states are divided over data-parallel ranks."""
    stated = job.option("use_distributed_optimizer")
    return job.layout.zero_stage >= 1 if stated is None else bool(stated)


def optimizer_ways(job: TrainingJob, *, expert: bool) -> int:
    """Ranks that share one copy of the optimizer's states."""
    layout = job.layout
    ways = layout.shard_group if layout.zero_stage >= 1 else layout.data * layout.context
    if expert:
        ways = max(1, ways * layout.tensor // (layout.expert * layout.expert_tensor))
    instances = int(str(job.option("num_distributed_optimizer_instances") or 1))
    return max(1, ways // instances)


class DtypeNames(Record):
    """The dtypes of each state."""

    parameter: str
    gradient: str
    master: str
    states: tuple[str, ...]


REMAINDERS = "16 bits of fp32"


def main_gradient(job: TrainingJob) -> str:
    """Dtype of the main gradients."""
    reduced = "bf16" if job.option("grad_reduce_in_bf16") else job.recipe.gradients
    return str(job.option("main_grads_dtype") or reduced)


def dtype_names(job: TrainingJob) -> DtypeNames:
    """Dtypes under the recipe and the precision-aware optimizer's options."""
    recipe = job.recipe
    count = STATES_PER_PARAMETER[job.optimizer.name]
    states = (recipe.optimizer_states,) * count
    master = recipe.master
    if job.option("use_precision_aware_optimizer"):
        states = tuple(str(job.option(n, "fp32")) for n in ("exp_avg_dtype", "exp_avg_sq_dtype")[:count])
        if master != "none":
            master = str(job.option("main_params_dtype", "fp32"))
        if master == "fp32" and recipe.params == "bf16" and bool(job.option("store_param_remainders", True)):
            master = REMAINDERS  # TE FusedAdam keeps the 16 bits of fp32 that the bf16 parameter lacks
    return DtypeNames(parameter=recipe.params, gradient=main_gradient(job), master=master, states=states)


def dtypes(job: TrainingJob) -> Dtypes:
    """Element sizes of the same."""
    return dtypes_of(dtype_names(job))


def dtypes_of(names: DtypeNames) -> Dtypes:
    """Element sizes of dtypes.

    States in fp8 are TransformerEngine's tensors, which have a copy by rows and a second one by columns. Its Adam asks
    for both (``pytorch/optimizers/fused_adam.py``, _initialize_state), and all but datacenter Blackwells make it
    (``pytorch/csrc/quantizer.cpp``, Float8Quantizer::create_tensor).
    """
    master = {"none": 0, REMAINDERS: 2, **DTYPE_BYTES}[names.master]
    states = tuple(DTYPE_BYTES[s] * (1 + (s == "fp8")) for s in names.states)
    return Dtypes(
        parameter=DTYPE_BYTES[names.parameter], gradient=DTYPE_BYTES[names.gradient], master=master, states=states
    )


def padded_elements(tensors: list[Counted], ways: int, *, high_bandwidth: bool = False) -> int:
    """Elements of one contiguous buffer whose parameters start aligned and whose end divides over ``ways`` ranks.

    The end is aligned at least as parameters are, so that their order does not matter.
    """
    position = sum([t.times * -(-t.numel // PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT for t in tensors])
    divisor = math.lcm(ways, BUCKET_ALIGNMENT, HIGH_BANDWIDTH_ALIGNMENT if high_bandwidth else 1)
    return -(-position // divisor) * divisor


def state_bytes(job: TrainingJob, tensors: list[Counted]) -> StateBytes:
    """Resident bytes on one rank between steps. Dense and expert parameters have buffers of their own."""
    item = dtypes(job).parameter
    total = StateBytes(parameters=sum([t.times * rounded(t.numel * item) for t in tensors if not t.trained]))
    for expert in (False, True):
        group = [t for t in tensors if t.expert == expert and t.trained]
        if group:
            total = total.plus(group_bytes(job, group, expert=expert))
    return total


def group_bytes(job: TrainingJob, tensors: list[Counted], *, expert: bool) -> StateBytes:
    """Resident bytes of the trained parameters that share an optimizer: the dense ones, or the experts."""
    if job.optimizer.name == "muon":
        return muon_bytes(job, tensors, expert=expert)
    size = dtypes(job)
    on_device = on_device_share(job)
    if not distributed(job):
        numel = elements(tensors)
        return StateBytes(
            parameters=sum([t.times * rounded(t.numel * size.parameter) for t in tensors]),
            gradients=rounded(numel * size.gradient),
            master_weights=int(on_device * sum([t.times * rounded(int(t.numel * size.master)) for t in tensors])),
            optimizer_states=int(
                on_device * sum([t.times * rounded(t.numel * s) for t in tensors for s in size.states])
            ),
        )
    ways = optimizer_ways(job, expert=expert)
    numel = padded_elements(tensors, ways, high_bandwidth=bool(job.option("ddp_pad_buckets_for_high_nccl_busbw")))
    shard = numel // ways
    return StateBytes(
        parameters=rounded(numel * size.parameter),
        gradients=rounded(numel * size.gradient),
        master_weights=int(on_device * rounded(int(shard * size.master))),
        optimizer_states=int(on_device * sum(rounded(shard * s) for s in size.states)),
    )


def on_device_share(job: TrainingJob) -> float:
    """Part of the optimizer that stays on the GPU (optimizer/cpu_offloading/hybrid_optimizer.py)."""
    if job.optimizer.offload != "none":
        return 0.0
    if job.option("optimizer_cpu_offload"):
        return 1.0 - float(str(job.option("optimizer_offload_fraction", 1.0)))
    return 1.0


def in_fp8(job: TrainingJob) -> bool:
    """``fp8_param_gather``: the weights of TE's linear layers rest, and are gathered, in fp8."""
    return bool(job.option("fp8_param_gather")) and fp8_format(job) is not None


def step_temporaries(job: TrainingJob, tensors: list[Counted], gradient: str | None = None) -> int:
    """What the optimizer's step allocates and frees. ``gradient``: a dtype of main gradients of Megatron-FSDP's own.

    Half-precision main gradients are copied to fp32 (optimizer.py, _copy_model_grads_to_main_grads), unless the
    optimizer is precision-aware and takes them as they are. That one copies the states that are not fp32 to fp32 and
    back, those of a whole parameter group at once (TransformerEngine ``pytorch/optimizers/fused_adam.py``, step:
    ``unscaled_lists``). Experts with groups of their own (extensions/transformer_engine.py, ``use_expert_pgs``) have an
    optimizer of their own, and the two step one after the other.
    Shards of weights in fp8 are all cast to bf16 before they are quantized (TransformerEngine
    ``pytorch/tensor/utils.py``, quantize_master_weights).
    """
    if job.option("use_precision_aware_optimizer"):
        layout = job.layout
        copies = [_unscaled(job, tensors, expert=expert) for expert in (False, True)]
        apart = layout.expert > 1 or layout.expert_tensor != layout.tensor
        return max(copies) if apart else sum(copies)
    found = 0
    if job.optimizer.name == "muon":
        found = muon_temporaries(job, tensors)
    for expert in (False, True):
        mine = [t for t in tensors if t.expert == expert and t.trained]
        ways = optimizer_ways(job, expert=expert) if distributed(job) else 1
        if DTYPE_BYTES[gradient or main_gradient(job)] < 4:
            found += rounded(elements(mine) * 4 // ways)
        if in_fp8(job):
            found += rounded(elements([t for t in mine if t.linear]) * 2 // ways)
    return found


def _unscaled(job: TrainingJob, tensors: list[Counted], *, expert: bool) -> int:
    """fp32 copies of the states of one optimizer that are stored in fewer bits, and the cast back of the largest in
    bf16.
    """
    names = dtype_names(job)
    version = str(job.option("transformer_engine_version") or "")
    kernel_scales = set(names.states) == {"bf16"} and bool(version) and not is_before(version, FUSED_SCALES_SINCE)
    states = () if kernel_scales else names.states
    copied = sum(name != "fp32" for name in states) + (names.master not in ("fp32", "none", REMAINDERS))
    mine = [t for t in tensors if t.expert == expert and t.trained]
    shard = -(-elements(mine) // optimizer_ways(job, expert=expert))
    back = 2 * min(shard, max((t.numel for t in mine), default=0)) if "bf16" in states else 0
    return int(on_device_share(job) * (copied * rounded(4 * shard) + rounded(back)))


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
    found = group_bytes(adam, others, expert=expert) if others else StateBytes()
    if not matrices:
        return found
    sgd = job._replace(optimizer=job.optimizer._replace(name="sgd-momentum"))
    if not distributed(job):
        apart = group_bytes(sgd, matrices, expert=expert)
        gradients = rounded(elements(tensors) * dtypes(job).gradient)  # all are in one buffer
        return found.plus(apart)._replace(gradients=gradients)
    size, ways = dtypes(sgd), optimizer_ways(job, expert=expert)
    least = max(LEAST_BUCKET, BUCKET_PER_RANK * ways) if job.option("overlap_grad_reduce") else 0
    stated = job.option("ddp_bucket_size")
    align = HIGH_BANDWIDTH_ALIGNMENT if job.option("ddp_pad_buckets_for_high_nccl_busbw") else 1
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
