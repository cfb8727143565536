"""The seconds of one optimizer step: the slowest pipeline rank, what it waits for, and what comes after its last
micro-batch.
"""

from __future__ import annotations

from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import timing_of
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture, Moe, Rough
from memcheck.record import Record
from memcheck.timing.collectives import all_reduce, exposed
from memcheck.timing.data_parallel import (
    dense_copies,
    expert_copies,
    gather_seconds,
    gathers_again,
    overlaps,
    precision,
    reduce_seconds,
    reduces_every,
)
from memcheck.timing.exchanges import Wires, wires_of
from memcheck.timing.model import REMEMBERED, ModelCost, Stage, parts_of, shape_of, stages_of
from memcheck.timing.optimizer import offload_seconds, step_seconds
from memcheck.timing.rates import TERA, Rates, rates_of
from memcheck.timing.second_passes import NONE, second_passes
from memcheck.timing.stage import Layer, Sharing, StageTime, bubble_seconds, layer_time, pipeline_seconds, stage_time
from memcheck.timing.types import Exchanges, StepTime


def step_time(job: TrainingJob, gpu: Gpu) -> StepTime:
    """Compute the time of one optimizer step of ``job`` on ``gpu``: a roofline model, good for ranking plans.

    Raises:
        MissingRateError: the GPU's record lacks a rate without which there is no answer.
        UnsupportedError: a rough model, whose layers are not known.
    """
    architecture = job.architecture
    if isinstance(architecture, Rough):
        raise UnsupportedError(
            "a rough model has no layers to time", "name a model or write its architecture", "/model/rough"
        )
    layout = job.layout
    shape = shape_of(job)
    rates = rates_of(
        gpu,
        job.recipe.compute,
        layout.gpus_per_node,
        fp8=shape.fp8,
        engine_attention=job.framework.transformer_engine,
    )
    model_cost = parts_of(architecture, shape, rates)
    wires = wires_of(job, architecture.hidden_size, shape.item_bytes, rates)
    sharing = _sharing(job, architecture, rates)
    recomputed_share = _recomputed(job, architecture)
    layer_times: dict[int, Layer] = {}  # equal layers share a cost
    for cost in model_cost.costs:
        if id(cost) not in layer_times:
            layer_times[id(cost)] = layer_time(job, cost, wires, recomputed_share, sharing, rates)
    layers = [layer_times[id(cost)] for cost in model_cost.costs]
    stages = stages_of(architecture, job, layout.pipeline)
    times = [stage_time(stage, layers, model_cost, wires, rates, sharing) for stage in stages]
    return _whole_step(job, architecture, rates, stages, times, wires, sharing, recomputed_share)


def _sharing(job: TrainingJob, architecture: Architecture, rates: Rates) -> Sharing:
    """Collect how data-parallel ranks share parameters and gradients, which is the same for every layer."""
    reshards = gathers_again(job)
    experts = max((block.mlp.experts for block, _ in architecture.blocks if isinstance(block.mlp, Moe)), default=0)
    return Sharing(
        dense=dense_copies(job, rates),
        experts=expert_copies(job, rates),
        precision=precision(job),
        reshards=reshards,
        gathers=reshards or job.layout.pipeline == 1,
        reduces=reduces_every(job) or job.gradient_accumulation_steps == 1,
        padding=timing_of(job.framework).experts_padding(job, experts) if experts else 1.0,
    )


def _recomputed(job: TrainingJob, architecture: Architecture) -> float:
    """Compute the share of the layers that are recomputed, 0 to 1."""
    if job.checkpointing.mode == "none":
        return 0.0
    if job.option("recompute_method") == "block":  # Megatron's
        count = job.option("recompute_num_layers")
        layers_per_rank = max(1, architecture.num_layers // job.layout.pipeline)
        return min(1.0, count / layers_per_rank) if isinstance(count, int) else 1.0
    return 1.0 / job.checkpointing.every_n_layers


def _whole_step(
    job: TrainingJob,
    architecture: Architecture,
    rates: Rates,
    stages: tuple[Stage, ...],
    stage_times: list[StageTime],
    wires: Wires,
    sharing: Sharing,
    recomputed_share: float,
) -> StepTime:
    """Compute the time of a whole optimizer step from that of one micro-batch on each pipeline stage.

    ``stage_times``: seconds of a micro-batch on each of the ``stages``. ``recomputed_share``: the share of the layers
    that are recomputed. Added is what happens once per step: the optimizer, the reduction of gradients below ZeRO-3,
    the pipeline bubble and transfers to the host.
    """
    layout, micro_batches = job.layout, job.gradient_accumulation_steps
    slowest = max(stage_times, key=lambda time: time.seconds)
    shards = sharing.dense.shard.ranks if layout.zero_stage else 1
    expert_shards = sharing.experts.shard.ranks if layout.zero_stage else 1
    parameters = slowest.dense_trained / shards + slowest.experts_trained / expert_shards
    update = step_seconds(job, parameters, rates, architecture.hidden_size)
    shard_bytes = (slowest.dense / shards + slowest.experts / expert_shards) * DTYPE_BYTES[job.recipe.params]
    # an offloaded shard is copied to the GPU for each forward, and for each backward unless FSDP keeps it gathered
    stays_gathered = layout.zero_stage == 3 and not sharing.reshards
    fetches = micro_batches if stays_gathered else 2 * micro_batches
    transfers = offload_seconds(job, parameters, shard_bytes, fetches, rates)
    offload = transfers.seconds
    if job.checkpointing.offload != "none":
        offload += _activation_offload(job, architecture, slowest, rates) * micro_batches
    forward_only = second_passes(job, architecture, rates, sharing) if job.objective.code else NONE
    compute = micro_batches * (slowest.arithmetic + forward_only.arithmetic) + update.arithmetic
    accumulation = _accumulation_bytes(job, slowest) / rates.hbm_bandwidth
    hbm = micro_batches * (slowest.memory + forward_only.memory + accumulation) + update.memory
    data = micro_batches * (slowest.data + forward_only.data) + slowest.last_data
    data += _after_backward(job, slowest, sharing, rates)
    exchanges = Exchanges(
        tensor=micro_batches * slowest.tensor,
        context=micro_batches * slowest.context,
        expert=micro_batches * slowest.expert,
        data=data,
        pipeline=pipeline_seconds(layout, micro_batches, wires.pipeline),
    )
    bubble = bubble_seconds(layout, micro_batches, stages, stage_times, slowest)
    seconds = compute + hbm + exchanges.seconds + bubble + offload
    sequences = job.rows * job.head.columns * micro_batches * layout.data
    tokens_per_gpu = sequences * job.sequence_length / layout.world_size
    flops = _flops(job, architecture, rates, recomputed_share)
    model_rate = flops.model * tokens_per_gpu / seconds
    hardware_rate = (flops.model + flops.recompute + flops.attention_recompute) * tokens_per_gpu / seconds
    return StepTime(
        seconds=seconds,
        compute_seconds=compute,
        hbm_seconds=hbm,
        exposed_communication_seconds=exchanges.seconds,
        bubble_seconds=bubble,
        offload_seconds=offload,
        tokens_per_second_per_gpu=tokens_per_gpu / seconds,
        model_tflops_per_gpu=model_rate / TERA,
        hardware_tflops_per_gpu=hardware_rate / TERA,
        model_flops_share=model_rate / rates.peak_flops,
        recompute_share=flops.recompute / flops.model,
        exchanges=exchanges,
        assumptions=rates.assumptions + transfers.assumptions,
    )


class TokenFlops(Record):
    """FLOPs per token of the whole model, forward and backward."""

    model: float
    """The model's math, which MFU counts."""
    recompute: float
    """What activation checkpointing computes again."""
    attention_recompute: float
    """The scores that attention kernels compute again in backward."""


def _flops(job: TrainingJob, architecture: Architecture, rates: Rates, recomputed_share: float) -> TokenFlops:
    """Return the FLOPs per token of the whole model; the count is cached.

    ``recomputed_share``: the share of the layers that are recomputed.
    """
    key = (
        id(architecture),
        job.sequence_length,
        job.framework,
        job.method,
        job.lora,
        job.freeze,
        job.checkpointing,
        job.attention,
        job.loss,
        job.options,
        rates,
    )
    entry = _counted.get(key)
    if entry is None or entry[0] is not architecture:
        if len(_counted) >= REMEMBERED:
            _counted.clear()
        entry = _counted[key] = (architecture, _count(job, architecture, rates))
    _, flops = entry
    return flops._replace(recompute=flops.recompute * recomputed_share)


_counted: dict[tuple[object, ...], tuple[Architecture, TokenFlops]] = {}
"""The FLOPs of a model as :func:`_count` returns them. An entry holds its architecture, so that the ``id`` in its key
stays unique."""
TRAINED_PARAMETER_FLOPS = 6.0
"""FLOPs per parameter and token of a trained matrix: two for each of the product, dX and dW."""


def _count(job: TrainingJob, architecture: Architecture, rates: Rates) -> TokenFlops:
    """Count the FLOPs per token of the whole model, with recompute in every layer."""
    whole_model = shape_of(job)._replace(
        batch=1,
        sequence=job.sequence_length,
        context_parallel=1,
        tensor_parallel=1,
        sequence_parallel=False,
        expert_parallel=1,
        expert_tensor_parallel=1,
        expert_imbalance=1.0,
        head_sharded=False,
    )
    tokens = job.sequence_length
    model_cost: ModelCost = parts_of(architecture, whole_model, rates)
    stage = stages_of(architecture, job, 1)[0]
    mtp_projection = TRAINED_PARAMETER_FLOPS * tokens * model_cost.head.mtp_projection_parameters
    head = model_cost.head.flops + model_cost.head.backward_flops
    model = head * (1 + stage.predictions) + mtp_projection * stage.predictions
    recompute = attention_recompute = 0.0
    for count, cost in zip(stage.layers, model_cost.costs, strict=True):
        model += count * (cost.flops + cost.backward_flops)
        recompute += count * cost.recomputed_flops
        attention_recompute += count * cost.attention_recompute_flops
    return TokenFlops(model / tokens, recompute / tokens, attention_recompute / tokens)


def _accumulation_bytes(job: TrainingJob, slowest: StageTime) -> float:
    """Compute the bytes moved to add the gradients of one micro-batch to those of earlier ones, on the slowest rank."""
    gradient_bytes = DTYPE_BYTES[job.recipe.gradients] * (slowest.dense_trained + slowest.experts_trained)
    if job.framework.own_gradients:  # the matrix product itself adds to the main gradient: a read and a write
        return 2.0 * gradient_bytes
    if job.gradient_accumulation_steps == 1 or job.layout.zero_stage == 3:
        return 0.0
    return 3.0 * gradient_bytes  # both terms are read, the sum is written


def _after_backward(job: TrainingJob, slowest: StageTime, sharing: Sharing, rates: Rates) -> float:
    """Compute the seconds of data-parallel exchanges once per step that the last backward does not hide.

    Below ZeRO-3 the gradients are reduced and, from ZeRO-1, the updated parameters are gathered. ZeRO-3 exchanges
    inside the micro-batches: 0.
    """
    zero_stage, item_bytes = job.layout.zero_stage, sharing.precision
    if zero_stage == 3:
        return 0.0
    reduce = reduce_seconds(sharing.dense, slowest.dense_trained, item_bytes)
    reduce += reduce_seconds(sharing.experts, slowest.experts_trained, item_bytes)
    if zero_stage == 1 and not job.framework.own_engine:  # DDP reduces, ZeroRedundancyOptimizer sends
        reduce = all_reduce(sharing.dense.shard, slowest.dense_trained * item_bytes.reduced)
    hides_reduce, hides_gather = overlaps(job)
    backward = (slowest.arithmetic + slowest.memory) * 2 / 3  # of a micro-batch: backward has twice the products
    forward = backward / 2
    seconds = exposed(reduce, backward, rates.collective_sm_share) if hides_reduce else reduce
    seconds *= job.gradient_accumulation_steps if sharing.reduces else 1
    if zero_stage:  # ranks update only their shards, and gather the parameters during the next forward
        gather = gather_seconds(sharing.dense, slowest.dense_trained, item_bytes)
        gather += gather_seconds(sharing.experts, slowest.experts_trained, item_bytes)
        seconds += exposed(gather, forward, rates.collective_sm_share) if hides_gather else gather
    return seconds


def _activation_offload(job: TrainingJob, architecture: Architecture, slowest: StageTime, rates: Rates) -> float:
    """Compute the seconds of offloading activations per micro-batch that the computation does not hide.

    The input of every layer goes to the host in forward and comes back in backward.
    """
    layout = job.layout
    tokens = job.rows * job.sequence_length // layout.context
    tokens = tokens // layout.tensor if layout.sequence else tokens
    layers = architecture.num_layers / layout.pipeline
    one_way = tokens * architecture.hidden_size * DTYPE_BYTES[job.recipe.compute] * layers / rates.host_bandwidth
    return max(0.0, 2 * one_way - slowest.arithmetic - slowest.memory)
