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

A rank's parameters, grouped by how Megatron's buffers treat them, with counts.

A mixture of experts has tens of thousands of tensors in a handful of sizes. What they take is asked for every layout
that a search looks at.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import groupby

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import STATES_PER_PARAMETER, LocalTensor, StateBytes
from memcheck.autograd.tensor import ceil_div, round_up, rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.setting import fp8_format
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.job.versions import is_before
from memcheck.record import Record


class Counted(Record):
    """Tensors of one size that go into one kind of buffer."""

    numel: int
    """Elements of each of the tensors."""
    trained: bool
    """The tensors get gradients and optimizer states."""
    expert: bool
    """The tensors belong to routed experts."""
    is_linear: bool
    """Weights of TransformerEngine's linear layers, which fp8 can hold."""
    muon_rows: int
    """How many rows a matrix has that Muon updates: no table of words and no output layer; else 0."""
    times: int
    """Number of equal tensors."""


def counted(units: Iterable[tuple[LocalTensor, ...]]) -> list[Counted]:
    """Count the tensors of the units by kind; a tuple that several units share is looked at once."""
    unit_tensors = list(units)
    distinct = dict(zip(map(id, unit_tensors), unit_tensors, strict=True))
    times = Counter(map(id, unit_tensors))
    counts: dict[_Kind, int] = {}
    for number, tensors in distinct.items():
        for kind, count in _kinds(tensors).items():
            counts[kind] = counts.get(kind, 0) + times[number] * count
    return [Counted(*kind, count) for kind, count in counts.items()]


MATRIX = 2
REMEMBERED = 64
"""Units whose counts are kept."""
_Kind = tuple[int, bool, bool, bool, int]
"""The fields of :class:`Counted` without the last."""
_counts_by_identity: dict[int, tuple[tuple[LocalTensor, ...], dict[_Kind, int]]] = {}
"""By identity: to hash the tensors of a layer with hundreds of experts takes longer than to count them."""


TABLES = ("word_embeddings", "output_layer")
"""Parts of the names of matrices that Muon leaves to Adam."""


def _kinds(tensors: tuple[LocalTensor, ...]) -> dict[_Kind, int]:
    """Count a unit's tensors by kind: elements, training, experts, linear layers and Muon's rows.

    Equal layers share one tuple of tensors, so that the result is cached by its identity.
    """
    remembered = _counts_by_identity.get(id(tensors))
    if remembered is not None:
        return remembered[1]
    if len(_counts_by_identity) >= REMEMBERED:
        _counts_by_identity.clear()
    counts: dict[_Kind, int] = {}
    for t in tensors:
        name, is_matrix = t.name, t.matrix
        by_muon = is_matrix and len(t.shape) == MATRIX and not (TABLES[0] in name or TABLES[1] in name)
        kind = (t.numel, t.trained, t.expert, is_matrix and "linear" in name, t.shape[0] if by_muon else 0)
        counts[kind] = counts.get(kind, 0) + 1
    _counts_by_identity[id(tensors)] = tensors, counts  # holds them, so that no others have their identity
    return counts


def elements(tensors: Iterable[Counted]) -> int:
    """Count the elements of all tensors of a list."""
    return sum([t.numel * t.times for t in tensors])


def runs_of(units: Sequence[Unit]) -> list[tuple[Unit, int]]:
    """Group consecutive units that are one object, as (unit, count)."""
    return [(run[0], len(run)) for run in (list(group) for _, group in groupby(units, key=id))]


PARAMETER_ALIGNMENT = 64
"""Elements to which the start of each parameter is aligned."""
BUCKET_ALIGNMENT = 128
"""Elements to which the end of a bucket is aligned, on all ranks together."""
HIGH_BANDWIDTH_ALIGNMENT = 2**16
"""Elements to which it is aligned with ``ddp_pad_buckets_for_high_nccl_busbw``."""
FUSED_SCALES_SINCE = (2, 14)
"""TransformerEngine, whose Adam takes two states in bf16 as they are from then on."""


class Dtypes(Record):
    """Bytes that one trained parameter takes in each state: itself, gradient, master copy, optimizer states."""

    parameter_bytes: int
    gradient_bytes: int
    """Bytes in the buffer of main gradients."""
    master_bytes: float
    """0 when the parameters are their own master copy; 2 when only the remainders of fp32 are stored."""
    state_bytes: tuple[int, ...]
    """Bytes in each state of the optimizer, such as Adam's two moments."""


def distributed(job: TrainingJob) -> bool:
    """Say whether optimizer states are divided over data-parallel ranks (``use_distributed_optimizer``, or ZeRO stage 1
    or more).
    """
    stated = job.option("use_distributed_optimizer")
    return job.layout.zero_stage >= 1 if stated is None else bool(stated)


def optimizer_ranks(job: TrainingJob, *, expert: bool) -> int:
    """Count the ranks that one copy of the optimizer's states is divided over. ``expert``: for expert parameters."""
    layout = job.layout
    ranks = layout.shard_group if layout.zero_stage >= 1 else layout.data * layout.context
    if expert:
        ranks = max(1, ranks * layout.tensor // (layout.expert * layout.expert_tensor))
    instances = int(str(job.option("num_distributed_optimizer_instances") or 1))
    return max(1, ranks // instances)


class DtypeNames(Record):
    """The dtypes of a trained parameter, its main gradient, its master copy and its optimizer states."""

    parameter: str
    gradient: str
    master: str
    """``none`` when the parameters are their own master copy, or :data:`REMAINDERS`."""
    states: tuple[str, ...]
    """One dtype for each state of the optimizer, such as Adam's two moments."""


REMAINDERS = "16 bits of fp32"
"""Master copy that stores only the lower 16 bits of fp32: the bf16 parameter has the upper ones."""


def main_gradient(job: TrainingJob) -> str:
    """Return the dtype name of the main gradients: ``main_grads_dtype``, bf16 under ``grad_reduce_in_bf16``, else the
    recipe's.
    """
    reduced = "bf16" if job.option("grad_reduce_in_bf16") else job.recipe.gradients
    return str(job.option("main_grads_dtype") or reduced)


def dtype_names(job: TrainingJob) -> DtypeNames:
    """Return the dtypes of parameters, main gradients, master weights and states.

    They follow from the recipe and the options of the precision-aware optimizer.
    """
    recipe = job.recipe
    state_count = STATES_PER_PARAMETER[job.optimizer.name]
    states = (recipe.optimizer_states,) * state_count
    master = recipe.master
    if job.option("use_precision_aware_optimizer"):
        states = tuple(str(job.option(n, "fp32")) for n in ("exp_avg_dtype", "exp_avg_sq_dtype")[:state_count])
        if master != "none":
            master = str(job.option("main_params_dtype", "fp32"))
        if master == "fp32" and recipe.params == "bf16" and bool(job.option("store_param_remainders", default=True)):
            master = REMAINDERS  # TE FusedAdam keeps the 16 bits of fp32 that the bf16 parameter lacks
    return DtypeNames(parameter=recipe.params, gradient=main_gradient(job), master=master, states=states)


def dtypes(job: TrainingJob) -> Dtypes:
    """Bytes per element of parameters, main gradients, master weights and each optimizer state."""
    return dtypes_of(dtype_names(job))


def dtypes_of(names: DtypeNames) -> Dtypes:
    """Return the bytes per element of each dtype.

    States in fp8 are TransformerEngine's tensors, which have a copy by rows and a second one by columns. Its Adam asks
    for both (``pytorch/optimizers/fused_adam.py``, _initialize_state), and all but datacenter Blackwells make it
    (``pytorch/csrc/quantizer.cpp``, Float8Quantizer::create_tensor).
    """
    master = {"none": 0, REMAINDERS: 2, **DTYPE_BYTES}[names.master]
    rows_and_columns = 2 * DTYPE_BYTES["fp8"]
    states = tuple(rows_and_columns if name == "fp8" else DTYPE_BYTES[name] for name in names.states)
    return Dtypes(
        parameter_bytes=DTYPE_BYTES[names.parameter],
        gradient_bytes=DTYPE_BYTES[names.gradient],
        master_bytes=master,
        state_bytes=states,
    )


def padded_elements(tensors: list[Counted], ranks: int, *, high_bandwidth: bool = False) -> int:
    """Return the elements of one contiguous buffer, with its parameters aligned and its end divisible over ``ranks``
    ranks.

    The end is aligned at least as parameters are, so that their order does not matter.
    """
    aligned = sum([t.times * ceil_div(t.numel, PARAMETER_ALIGNMENT) * PARAMETER_ALIGNMENT for t in tensors])
    divisor = math.lcm(ranks, BUCKET_ALIGNMENT, HIGH_BANDWIDTH_ALIGNMENT if high_bandwidth else 1)
    return round_up(aligned, divisor)


def state_bytes(job: TrainingJob, tensors: list[Counted]) -> StateBytes:
    """Return the resident bytes on one rank between steps. Dense and expert parameters have separate buffers."""
    element_bytes = dtypes(job).parameter_bytes
    total = StateBytes(parameters=sum([t.times * rounded(t.numel * element_bytes) for t in tensors if not t.trained]))
    for expert in (False, True):
        group = [t for t in tensors if t.expert == expert and t.trained]
        if group:
            total = total.plus(group_bytes(job, group, expert=expert))
    return total


def group_bytes(job: TrainingJob, tensors: list[Counted], *, expert: bool) -> StateBytes:
    """Return one rank's resident bytes of parameters, gradients, master weights and optimizer states.

    ``tensors``: the trained parameters of one optimizer: the dense ones, or the experts (``expert``). The distributed
    optimizer keeps parameters and gradients in padded buffers, and a shard of master weights and states. Without it all
    tensors are whole. Optimizer offload leaves only a share of the states on the GPU (:func:`on_device_share`).
    """
    if job.optimizer.name == "muon":
        return muon_bytes(job, tensors, expert=expert)
    element_bytes = dtypes(job)
    on_device = on_device_share(job)
    if not distributed(job):
        parameters = master_weights = states = 0
        for t in tensors:
            parameters += t.times * rounded(t.numel * element_bytes.parameter_bytes)
            master_weights += t.times * rounded(int(t.numel * element_bytes.master_bytes))
            states += t.times * sum([rounded(t.numel * item_bytes) for item_bytes in element_bytes.state_bytes])
        return StateBytes(
            parameters=parameters,
            gradients=rounded(elements(tensors) * element_bytes.gradient_bytes),
            master_weights=int(on_device * master_weights),
            optimizer_states=int(on_device * states),
        )
    ranks = optimizer_ranks(job, expert=expert)
    numel = padded_elements(tensors, ranks, high_bandwidth=bool(job.option("ddp_pad_buckets_for_high_nccl_busbw")))
    shard = numel // ranks
    return StateBytes(
        parameters=rounded(numel * element_bytes.parameter_bytes),
        gradients=rounded(numel * element_bytes.gradient_bytes),
        master_weights=int(on_device * rounded(int(shard * element_bytes.master_bytes))),
        optimizer_states=int(
            on_device * sum(rounded(shard * state_item_bytes) for state_item_bytes in element_bytes.state_bytes)
        ),
    )


def on_device_share(job: TrainingJob) -> float:
    """Return the share of the optimizer that stays on the GPU (optimizer/cpu_offloading/hybrid_optimizer.py)."""
    if job.optimizer.offload != "none":
        return 0.0
    if job.option("optimizer_cpu_offload"):
        return 1.0 - float(str(job.option("optimizer_offload_fraction", 1.0)))
    return 1.0


def has_fp8_weights(job: TrainingJob) -> bool:
    """Whether the weights of TE's linear layers are stored and gathered in fp8 (``fp8_param_gather``)."""
    return bool(job.option("fp8_param_gather")) and fp8_format(job) is not None


def step_temporaries(job: TrainingJob, tensors: list[Counted], gradient: str | None = None) -> int:
    """Return the temporary bytes of the optimizer's step on one rank.

    ``gradient``: the dtype of main gradients where Megatron-FSDP has its own; None: the plan's. Three kinds of copies
    are made: main gradients in 16 bits are copied to fp32 (optimizer.py, _copy_model_grads_to_main_grads); TE's
    precision-aware Adam copies states to fp32 instead; shards of fp8 weights are cast to bf16 before they are quantized
    (TransformerEngine ``pytorch/tensor/utils.py``, quantize_master_weights).
    """
    if job.option("use_precision_aware_optimizer"):
        # fused_adam.py, step: `unscaled_lists` holds the states of a whole parameter group. Experts whose process
        # groups differ (`use_expert_pgs`) have an optimizer of their own, which steps after the dense one
        layout = job.layout
        copies = [_unscaled_state_bytes(job, tensors, expert=expert) for expert in (False, True)]
        separate_optimizers = layout.expert > 1 or layout.expert_tensor != layout.tensor
        return max(copies) if separate_optimizers else sum(copies)
    total = 0
    if job.optimizer.name == "muon":
        total = muon_temporaries(job, tensors)
    for expert in (False, True):
        trained = [t for t in tensors if t.expert == expert and t.trained]
        ranks = optimizer_ranks(job, expert=expert) if distributed(job) else 1
        if DTYPE_BYTES[gradient or main_gradient(job)] < DTYPE_BYTES["fp32"]:
            total += rounded(elements(trained) * DTYPE_BYTES["fp32"] // ranks)
        if has_fp8_weights(job):
            total += rounded(elements([t for t in trained if t.is_linear]) * DTYPE_BYTES["bf16"] // ranks)
    return total


def _unscaled_state_bytes(job: TrainingJob, tensors: list[Counted], *, expert: bool) -> int:
    """Return the bytes of fp32 copies of one optimizer's states that are stored in fewer bits.

    Adds the cast of the largest state back to bf16.
    """
    names = dtype_names(job)
    version = str(job.option("transformer_engine_version") or "")
    kernel_reads_bf16 = bool(version) and not is_before(version, FUSED_SCALES_SINCE)
    copied_states = [dtype for dtype in names.states if dtype != "fp32"]
    if set(names.states) == {"bf16"} and kernel_reads_bf16:
        copied_states = []
    copies = len(copied_states)
    if names.master not in ("fp32", "none", REMAINDERS):
        copies += 1
    trained = [t for t in tensors if t.expert == expert and t.trained]
    shard_numel = ceil_div(elements(trained), optimizer_ranks(job, expert=expert))
    fp32_bytes = copies * rounded(shard_numel * DTYPE_BYTES["fp32"])
    cast_back_bytes = 0
    if "bf16" in copied_states:
        largest_numel = max((t.numel for t in trained), default=0)
        cast_back_bytes = rounded(min(shard_numel, largest_numel) * DTYPE_BYTES["bf16"])
    return int(on_device_share(job) * (fp32_bytes + cast_back_bytes))


RANK_SHARE_LIMIT = 1.3
"""``1 + _NUMEL_EPSILON``: how much more than its share of a bucket a rank gets, if another has room."""
BUCKET_FILL_FLOOR = 0.9
"""``PADDING_FLOOR``"""
SMALLEST_BUCKET, BUCKET_PER_RANK = 40_000_000, 1_000_000
"""Smallest bucket, and smallest bucket per data-parallel rank, in elements (distributed_data_parallel.py)."""


def require_muon_supported(job: TrainingJob) -> None:
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
    """Return the resident bytes of trained parameters that share an optimizer, where Muon updates the matrices.

    Adam updates the other tensors. With the distributed optimizer a matrix belongs to one rank, and buffers are padded
    to the fullest rank.
    """
    adam = job._replace(optimizer=job.optimizer._replace(name="adamw"))
    adam_tensors = [t for t in tensors if not t.muon_rows]
    matrices = [t for t in tensors if t.muon_rows]
    adam_bytes = group_bytes(adam, adam_tensors, expert=expert) if adam_tensors else StateBytes()
    if not matrices:
        return adam_bytes
    sgd = job._replace(optimizer=job.optimizer._replace(name="sgd-momentum"))
    if not distributed(job):
        momentum_bytes = group_bytes(sgd, matrices, expert=expert)
        # gradients of matrices and other tensors share one buffer
        gradients = rounded(elements(tensors) * dtypes(job).gradient_bytes)
        return adam_bytes.plus(momentum_bytes)._replace(gradients=gradients)
    element_bytes, ranks = dtypes(sgd), optimizer_ranks(job, expert=expert)
    smallest_bucket = 0  # one bucket
    if job.option("overlap_grad_reduce"):
        default_bucket = max(SMALLEST_BUCKET, BUCKET_PER_RANK * ranks)
        smallest_bucket = int(str(job.option("ddp_bucket_size") or default_bucket))
    alignment = HIGH_BANDWIDTH_ALIGNMENT if job.option("ddp_pad_buckets_for_high_nccl_busbw") else 1
    matrix_sizes = tuple([(t.numel, t.muon_rows, t.times) for t in matrices])
    shard_elements, largest_load = fullest_shard(matrix_sizes, ranks, smallest_bucket, alignment)
    return adam_bytes.plus(
        StateBytes(
            parameters=rounded(ranks * shard_elements * element_bytes.parameter_bytes),
            gradients=rounded(ranks * shard_elements * element_bytes.gradient_bytes),
            master_weights=int(largest_load * element_bytes.master_bytes),
            optimizer_states=sum(largest_load * state_item_bytes for state_item_bytes in element_bytes.state_bytes),
        )
    )


def muon_temporaries(job: TrainingJob, tensors: list[Counted]) -> int:
    """Return the bytes that Muon's step of the largest matrix takes while the previous result is live.

    It is the larger of two moments. First the parts of all tensor ranks are gathered and joined, and the joined matrix
    is divided by its norm in fp32 and cast to bf16. Later a product of each iteration is live together with its two
    squares in bf16. The previous result is in fp32, and has the elements of this rank's part.
    """
    fp32, bf16 = DTYPE_BYTES["fp32"], DTYPE_BYTES["bf16"]
    largest = 0
    for t in tensors:
        if t.trained and t.muon_rows:
            tensor_ranks = job.layout.expert_tensor if t.expert else job.layout.tensor
            full_numel, columns = t.numel * tensor_ranks, t.numel // t.muon_rows
            square_numel = min(t.muon_rows * tensor_ranks, columns) ** 2  # of the smaller dimension, at most
            normalising = full_numel * (3 * fp32 + bf16)  # gathered, joined, divided; cast
            iterating = full_numel * (2 * fp32 + 2 * bf16) + 2 * square_numel * bf16
            largest = max(largest, t.numel * fp32 + max(normalising, iterating))
    return largest


@lru_cache(maxsize=64)
def fullest_shard(
    matrices: tuple[tuple[int, int, int], ...], world: int, smallest_bucket: int, alignment: int = 1
) -> tuple[int, int]:
    """Return the elements of one rank's shard of the layer-wise Muon buffer, and those of the fullest rank's matrices.

    Whole matrices are assigned to ranks, so that shards are padded to the largest one. ``matrices``: (elements, rows,
    number of layers), in the order in which they repeat in each layer. ``world``: ranks that share the optimizer.
    ``smallest_bucket``: elements; 0 for one bucket. ``alignment``: elements to which shards are padded.
    Source: LayerWiseDistributedOptimizer._compute_per_buffer_param_layout.
    """
    in_model_order: list[tuple[int, int]] = []
    for layer in range(max(times for _, _, times in matrices)):
        in_model_order += [(numel, rows) for numel, rows, times in matrices if layer < times]
    divisor = math.lcm(PARAMETER_ALIGNMENT, math.lcm(world, BUCKET_ALIGNMENT, alignment) // world)
    ranks = min(world, len(in_model_order))  # further ranks get no matrix
    work_of_rank, elements_of_rank, shard = [0.0] * ranks, [0] * ranks, 0
    for bucket in _buckets(in_model_order[::-1], world, smallest_bucket, divisor):
        mean_elements = sum(numel for numel, _ in bucket) / world
        assigned, largest_shard = assign_bucket(bucket, work_of_rank, mean_elements * RANK_SHARE_LIMIT)
        for rank, numel in assigned.items():
            elements_of_rank[rank] += numel
        shard += round_up(largest_shard, divisor)
    return shard, max(elements_of_rank)


def assign_bucket(bucket: list[tuple[int, int]], loads: list[float], cap: float) -> tuple[dict[int, int], int]:
    """Assign the matrices of a bucket to ranks; return the elements of each rank, and the largest rank's padded size.

    ``bucket``: (elements, rows) of each matrix; the costliest is assigned first. It goes to the rank with the least
    work whose size stays at or below ``cap`` elements; if there is none, to the rank with the smallest size.
    ``loads``: the work of each rank so far, in :func:`_newton_schulz_cost`; this bucket's work is added to it in place.
    Of equal ranks the first is taken.
    """
    sizes, elements = [0] * len(loads), dict[int, int]()  # sizes are padded: each matrix begins at an aligned element
    # two heaps, for the rank with the least work and for the smallest; an entry is stale once its rank got more
    # (its number then differs from `sizes` or `loads`), and each heap has one entry of every rank that is not
    by_load = [(load, rank) for rank, load in enumerate(loads)]
    heapify(by_load)
    by_size = [(0, rank) for rank in range(len(loads))]
    for numel, rows in sorted(bucket, key=_newton_schulz_cost, reverse=True):
        smallest_size, rank = by_size[0]
        while sizes[rank] != smallest_size:  # stale
            heappop(by_size)
            smallest_size, rank = by_size[0]
        full_ranks = list[tuple[float, int]]()
        # if the smallest rank has no room, none has; if it has, the loop ends there at the latest
        while round_up(smallest_size, PARAMETER_ALIGNMENT) + numel <= cap:
            load, rank = heappop(by_load)
            if loads[rank] != load:  # stale
                continue
            if round_up(sizes[rank], PARAMETER_ALIGNMENT) + numel <= cap:
                break
            full_ranks.append((load, rank))
        for entry in full_ranks:
            heappush(by_load, entry)
        sizes[rank] = round_up(sizes[rank], PARAMETER_ALIGNMENT) + numel
        loads[rank] += _newton_schulz_cost((numel, rows))
        elements[rank] = elements.get(rank, 0) + numel
        heappush(by_load, (loads[rank], rank))
        heappush(by_size, (sizes[rank], rank))
    return elements, max(sizes)


def _newton_schulz_cost(matrix: tuple[int, int]) -> int:
    """Return the relative cost of one Newton-Schulz iteration of a matrix of (elements, rows): ``_ns_compute_cost``."""
    numel, rows = matrix
    return numel * min(rows, numel // rows)


def _buckets(
    order: list[tuple[int, int]], ranks: int, smallest_bucket: int, divisor: int
) -> list[list[tuple[int, int]]]:
    """Split the matrices of the layer-wise Muon buffer into buckets, each a list of (elements, rows).

    ``order``: (elements, rows) of each matrix in backward order. ``ranks``: those that share the optimizer. A bucket is
    closed when it has enough elements and the next matrix would enlarge its largest shard. ``smallest_bucket``:
    elements; 0 for one bucket. ``divisor``: elements to which a shard is padded.
    """
    if not smallest_bucket:
        return [order]
    buckets: list[list[tuple[int, int]]] = [[]]
    shard_sizes = [0] * min(ranks, len(order))  # a heap: the smallest shard comes first
    largest_shard = elements = largest_matrix = 0
    for numel, rows in order:
        enough = max(smallest_bucket, int(ranks * largest_matrix * BUCKET_FILL_FLOOR))
        is_full = bool(buckets[-1]) and elements >= enough
        enlarged_shard = round_up(shard_sizes[0], PARAMETER_ALIGNMENT) + numel
        if is_full and enlarged_shard > round_up(largest_shard, divisor):
            buckets.append([])
            shard_sizes = [0] * len(shard_sizes)
            largest_shard = elements = largest_matrix = 0
        buckets[-1].append((numel, rows))
        shard_size = round_up(heappop(shard_sizes), PARAMETER_ALIGNMENT) + numel
        heappush(shard_sizes, shard_size)
        largest_shard = max(largest_shard, shard_size)
        elements += numel
        largest_matrix = max(largest_matrix, numel)
    return buckets
