"""Megatron-FSDP: what its gather and reduce pipelines hold in addition to the shards.

Source: Megatron-core ``distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py`` (suggested_communication_unit_size, units
are transformer layers, everything else stays gathered), ``param_and_grad_buffer.py`` (AllGatherPipeline: prefetch until
half the unit size in elements; GradReducePipeline: unreduced buckets are freed only beyond the unit size;
FixedPoolAllocator: two buffers of one unit each).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import StateBytes
from memcheck.autograd.tensor import ceil_div, rounded
from memcheck.frameworks.megatron.buffers import (
    Counted,
    DtypeNames,
    counted,
    dtype_names,
    dtypes_of,
    elements,
    has_fp8_weights,
    main_gradient,
    on_device_share,
    optimizer_ranks,
)
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.record import Record

MINIMUM_UNIT = 1_000_000_000
"""Elements; ``max(1_000_000_000, ...)`` in MegatronFSDP.__init__, although its comment says cap."""


class Extra(Record):
    """Bytes that are live while a unit runs, in addition to its own curve."""

    forward_bytes: int
    """Gathered and prefetched parameters in the unit's forward."""
    backward_bytes: int
    """Gathered and prefetched parameters in its backward, and gradients that are not reduced yet."""


def strategy(job: TrainingJob) -> str:
    """Return ``optim`` (the plain distributed optimizer) | ``optim_grads`` | ``optim_grads_params``."""
    stated = job.option("data_parallel_sharding_strategy")
    if stated:
        return str(stated)
    return ("optim", "optim", "optim_grads", "optim_grads_params")[job.layout.zero_stage]


def is_sharded(job: TrainingJob) -> bool:
    """Whether gradients (and parameters) are divided too."""
    return strategy(job) in ("optim_grads", "optim_grads_params")


def sharded_dtype_names(job: TrainingJob) -> DtypeNames:
    """Return the dtypes of Megatron-FSDP's buffers.

    Main weights have a dtype of their own whatever the parameters' dtype, unless ``auto`` (param_and_grad_buffer.py,
    _init_each_parameter_group_buffers). ``--megatron-fsdp-main-params-dtype`` is fp32 unless the plan says otherwise.
    """
    master = str(job.option("megatron_fsdp_main_params_dtype", "fp32"))
    return dtype_names(job)._replace(master="none" if master == "auto" else master, gradient=sharded_gradient(job))


def sharded_gradient(job: TrainingJob) -> str:
    """Return the dtype of Megatron-FSDP's gradient buffers.

    In releases with ``megatron_fsdp_main_grads_dtype`` the default, ``auto``, is the dtype of the parameters. A plan
    without the option may run an older release, which has fp32 (``grad_reduce_in_fp32``).
    """
    stated = str(job.option("megatron_fsdp_main_grads_dtype") or main_gradient(job))
    return job.recipe.params if stated == "auto" else stated


def parameter_bytes(job: TrainingJob, tensors: Iterable[Counted], ranks: int = 1) -> int:
    """Return the bytes of the weight buffers over ``ranks`` ranks.

    MXFP8 has a second buffer, by columns (fp8_need_transpose_data).
    """
    element_bytes = linear_bytes = DTYPE_BYTES[job.recipe.params]
    if has_fp8_weights(job):
        fp8_copies = 2 if job.option("fp8_recipe") == "mxfp8" else 1
        linear_bytes = fp8_copies * DTYPE_BYTES["fp8"]
    total = sum([t.times * t.numel * (linear_bytes if t.is_linear else element_bytes) for t in tensors])
    return ceil_div(total, ranks)


def state_bytes(job: TrainingJob, tensors: list[Counted]) -> StateBytes:
    """Return the bytes of the shards of parameters, main gradients, master weights and states on one rank.

    Dense and expert tensors have separate groups.
    """
    element_bytes, total = dtypes_of(sharded_dtype_names(job)), StateBytes()
    on_device = on_device_share(job)
    for expert in (False, True):
        group = [t for t in tensors if t.expert == expert]
        numel = elements([t for t in group if t.trained])
        if not group:
            continue
        ranks = optimizer_ranks(job, expert=expert)
        shard = ceil_div(numel, ranks)
        total = total.plus(
            StateBytes(
                parameters=rounded(parameter_bytes(job, group, ranks if strategy(job) == "optim_grads_params" else 1)),
                gradients=rounded(shard * element_bytes.gradient_bytes),
                master_weights=int(on_device * rounded(int(shard * element_bytes.master_bytes))),
                optimizer_states=int(
                    on_device * sum(rounded(shard * state_item_bytes) for state_item_bytes in element_bytes.state_bytes)
                ),
            )
        )
    return total


def _elements(unit: Unit) -> int:
    return elements(counted([unit.tensors]))


def gradient_dtype(job: TrainingJob) -> str:
    """Return the dtype in which unsharded gradients wait to be reduced."""
    stated = str(job.option("megatron_fsdp_grad_comm_dtype", "auto"))
    return sharded_gradient(job) if stated == "auto" else stated


def _outer_gradient_elements(units: list[Unit]) -> list[int]:
    """Return for each unit the elements of the root's gradient bucket that are live in the unit's backward.

    Megatron-FSDP has one bucket for the parameters outside layers (embedding, norms, head). It is allocated for the
    first gradient of them, and freed when all have arrived (param_and_grad_buffer.py, get_main_grad,
    get_ready_bucket_group_for_reduction). In the head it is 0: the head's own curve counts the bucket.
    """
    sizes = [0 if unit.kind == "block" else _elements(unit) for unit in units]
    last_outer = max((i for i, size in enumerate(sizes) if size), default=-1)
    bucket_elements = sum(sizes)
    return [bucket_elements if i <= last_outer and unit.kind != "head" else 0 for i, unit in enumerate(units)]


def unit_size(job: TrainingJob, units: list[Unit]) -> int:
    """Return the limit of prefetched and unreduced elements (``suggested_communication_unit_size``).

    Default: twice the mean layer, and at least 1e9.
    """
    stated = job.option("suggested_communication_unit_size")
    if stated:
        return int(str(stated))
    blocks = [block for block in units if block.kind == "block"]
    mean = elements(counted([block.tensors for block in blocks])) // len(blocks) if blocks else 0
    return max(MINIMUM_UNIT, 2 * mean)


def root_bytes(job: TrainingJob, units: list[Unit]) -> int:
    """Return the bytes of parameters outside the layers, which stay gathered all step under ``optim_grads_params``."""
    if strategy(job) != "optim_grads_params":
        return 0
    return rounded(sum(parameter_bytes(job, counted([u.tensors])) for u in units if u.kind != "block"))


class GatheredLayer(Record):
    """The size of one layer under Megatron-FSDP."""

    elements: int
    """Elements of its parameters, by which prefetching and reduction are limited."""
    parameter_bytes: int
    """Bytes of its gathered parameters."""
    gradient_bytes: int
    """Bytes of its gradients before they are reduced."""


def extras(job: TrainingJob, units: list[Unit]) -> list[Extra]:
    """Return for each unit what Megatron-FSDP adds to its forward and to its backward, in bytes.

    Forward: the parameters gathered for the unit, and those prefetched for later layers. Backward: the same for earlier
    layers, and gradients that are not reduced yet. ``units``: of one model chunk in forward order.
    """
    limit = unit_size(job, units)
    gradient_item_bytes = DTYPE_BYTES[gradient_dtype(job)]
    layers = _gathered_layers(job, units, gradient_item_bytes)
    if job.option("fsdp_double_buffer") or job.option("nccl_ub"):
        return _double_buffered(units, layers, gradient_item_bytes)
    unit_extras: list[Extra] = []
    in_order = list(layers.values())
    # gradient bytes of the last 0, 1, 2, ... layers together
    gradients_of_last = [*accumulate((layer.gradient_bytes for layer in reversed(in_order)), initial=0)]
    layers_done = 0
    outer_elements = _outer_gradient_elements(units)
    for i, unit in enumerate(units):
        # by position: slices of all layers for each layer would take time in the square of their number
        earlier_layers = (in_order[position] for position in range(layers_done - 1, -1, -1))
        if i in layers:
            layers_done += 1
        later_layers = (in_order[position] for position in range(layers_done, len(in_order)))
        layer = layers.get(i, GatheredLayer(0, 0, 0))
        forward = layer.parameter_bytes + _prefetched_bytes(later_layers, limit // 2)
        # the first pre-backward hook of a unit starts the prefetch: none has run yet under the head
        prefetches = unit.kind in ("block", "embedding")
        backward = layer.parameter_bytes + _prefetched_bytes(earlier_layers, limit // 2) if prefetches else 0
        # later layers' gradients that are not reduced yet: at most the limit and one layer more
        most_unreduced = gradient_item_bytes * (limit + layer.elements)
        unreduced = min(most_unreduced, gradients_of_last[len(in_order) - layers_done])
        root_bucket = gradient_item_bytes * outer_elements[i]
        unit_extras.append(Extra(rounded(forward), rounded(backward + layer.gradient_bytes + unreduced + root_bucket)))
    return unit_extras


def _gathered_layers(job: TrainingJob, units: list[Unit], gradient_item_bytes: int) -> dict[int, GatheredLayer]:
    """Return the bytes of each layer of a chunk, by the number of its unit in forward order.

    Parameters count as 0 unless they are gathered (``optim_grads_params``). Equal layers share one tuple of tensors,
    which is counted once.
    """
    gathers = strategy(job) == "optim_grads_params"
    by_tensors: dict[int, GatheredLayer] = {}
    layers: dict[int, GatheredLayer] = {}
    for number, unit in enumerate(units):
        if unit.kind != "block":
            continue
        if id(unit.tensors) not in by_tensors:
            tensors = counted([unit.tensors])
            parameter = parameter_bytes(job, tensors) if gathers else 0
            gradient = gradient_item_bytes * elements([t for t in tensors if t.trained])
            by_tensors[id(unit.tensors)] = GatheredLayer(elements(tensors), parameter, gradient)
        layers[number] = by_tensors[id(unit.tensors)]
    return layers


def _double_buffered(units: list[Unit], layers: dict[int, GatheredLayer], gradient_item_bytes: int) -> list[Extra]:
    """Return for each unit what Megatron-FSDP adds in bytes under ``fsdp_double_buffer`` (FixedPoolAllocator).

    It keeps two buffers for parameters and two for gradients, which fit the most frequent size of a layer. Layers of
    another size are gathered, and their gradients allocated, outside these buffers. ``layers``: by number of the unit.
    """
    sizes = list(layers.values())
    empty = GatheredLayer(0, 0, 0)
    common = max(sizes, key=lambda layer: (sizes.count(layer), layer.elements), default=empty)
    pool = min(2, sizes.count(common)) * (common.parameter_bytes + common.gradient_bytes)
    unit_extras: list[Extra] = []
    for i, outer_elements in enumerate(_outer_gradient_elements(units)):
        unpooled_neighbours = [layers[other] for other in (i - 1, i, i + 1) if layers.get(other, common) != common]
        unpooled = layers[i] if layers.get(i, common) != common else empty
        forward = pool + sum(layer.parameter_bytes for layer in unpooled_neighbours[:2])
        unit_extras.append(
            Extra(rounded(forward), rounded(forward + unpooled.gradient_bytes + gradient_item_bytes * outer_elements))
        )
    return unit_extras


def _prefetched_bytes(order: Iterable[GatheredLayer], limit: int) -> int:
    """Return the bytes gathered ahead: whole layers in order until ``limit`` elements are reached."""
    total = elements = 0
    for cost in order:
        if elements >= limit:
            break
        elements += cost.elements
        total += cost.parameter_bytes
    return total
