"""The seconds of one optimizer step: the slowest pipeline rank, what it waits for, and what comes after its last
micro-batch.

The optimizer's step: memory traffic on the GPU, or transfers and a step on the host.

Forward passes without gradients that a micro-batch runs in addition to its own: of a reference, and those that
estimate a divergence.
"""

from __future__ import annotations

from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import timing_of
from memcheck.job.types import COMPARED, DTYPE_BYTES, SECOND_PASSES, Assumption, TrainingJob
from memcheck.models.types import Architecture, Moe, Rough
from memcheck.record import Record
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
from memcheck.timing.rates import GB, TERA, Rates, all_reduce, exposed, rates_of
from memcheck.timing.stage import PartTime, Sharing, bubble_seconds, layer_time, pipeline_seconds, stage_time
from memcheck.timing.types import Exchanges, RooflineSeconds, StepTime

ACCESSES = {
    "adamw": 20,
    "adam": 20,
    "paged-adamw": 20,
    "sgd": 3,
    "sgd-momentum": 6,
    "lion": 9,
    "adafactor": 12,
    "muon": 9,
    "te-fused-adam": 9,
}
"""Elements read and written per parameter, one operation after the other (``torch/optim/adamw.py`` _multi_tensor_adamw:
mul_ 2, lerp_ 3, mul_ 2, addcmul_ 3, sqrt 2, div_ 2, add_ 2, addcdiv_ 4; the others counted in the same way).
"""
FUSED = {
    "adamw": 7,
    "adam": 7,
    "paged-adamw": 7,
    "sgd": 3,
    "sgd-momentum": 5,
    "lion": 5,
    "adafactor": 12,
    "muon": 9,
    "te-fused-adam": 9,
}
"""In one kernel: parameter, gradient and states are read, parameter and states written; TransformerEngine's fp32 master
weights, too."""
EIGHT_BIT = {
    "adamw-8bit": 2,
    "paged-adamw-8bit": 2,
    "lion-8bit": 1,
    "adamw-torchao-8bit": 2,
    "adamw-torchao-fp8": 2,
    "adamw-torchao-4bit": 1,
    "flash-adamw": 2,
    "flash-adamw-32": 2,
}
"""States of one byte, each read and written; two of half a byte are one."""

MUON_PRODUCTS = 15
"""Newton-Schulz: five iterations of three matrix products (Jordan et al. 2024)."""

HOST_ADAM_PER_SECOND = 4.0e9
"""Parameters per second and node that DeepSpeed's CPU-Adam updates: 2.57 s for 10 B (Ren et al. 2021, table 4)."""
TORCH_SLOWER = 5.1
"""How many times longer torch's own takes there, one operation after the other: 5.1 to 6.5 for 1 to 10 B (DeepSpeed
``docs/_pages/training.md``, CPU-Adam). Its fused kernel is one loop over parameter and states, as CPU-Adam is
(``aten/src/ATen/native/cpu/FusedAdamKernel.cpp``), and what Megatron calls (``core/optimizer/__init__.py``)."""
NVME_GBS = 7.0
"""One PCIe 4 x4 drive per GPU, sequential, one direction."""
SWAPPED_BYTES = 12
"""Bytes per parameter on NVMe between steps: fp32 master weight and Adam's two fp32 moments."""


def step_seconds(job: TrainingJob, parameters: float, rates: Rates, muon_side: int) -> RooflineSeconds:
    """Compute the seconds of the optimizer's step on the GPU, with clipping and zeroing of the gradients.

    ``parameters``: trained parameters that this rank updates. ``muon_side``: rows of one of Muon's matrices, taken as
    square.
    """
    name = job.optimizer.name
    gradient_bytes = DTYPE_BYTES[job.recipe.gradients]
    # clipping reads every gradient once for its norm, and reads and writes it to scale it; zeroing writes it
    bytes_per_parameter = 3.0 * gradient_bytes if job.clip_grad_norm else 0.0
    bytes_per_parameter += gradient_bytes
    if on_host(job):
        return RooflineSeconds(
            arithmetic_seconds=0.0, memory_seconds=parameters * bytes_per_parameter / rates.hbm_bandwidth
        )
    bytes_per_parameter += _update_bytes(job)
    memory = parameters * bytes_per_parameter / rates.hbm_bandwidth
    if name != "muon":
        return RooflineSeconds(arithmetic_seconds=0.0, memory_seconds=memory)
    # Newton-Schulz: each product of n x n matrices, n^2 parameters, takes 2 n^3 FLOPs
    newton_schulz = 2.0 * MUON_PRODUCTS * muon_side * parameters / rates.matmul_flops
    return RooflineSeconds(arithmetic_seconds=newton_schulz, memory_seconds=memory)


def _update_bytes(job: TrainingJob) -> float:
    """Count the bytes per parameter that the optimizer reads and writes to update the weight and its states."""
    recipe, name = job.recipe, job.optimizer.name
    weight_bytes = DTYPE_BYTES[recipe.params if recipe.master == "none" else recipe.master]
    state_bytes = DTYPE_BYTES[recipe.optimizer_states]
    if name in EIGHT_BIT:  # weight and states are read and written, the gradient is read
        moved = 2.0 * weight_bytes + DTYPE_BYTES[recipe.gradients] + 2.0 * EIGHT_BIT[name]
    else:
        accesses = FUSED[name] if job.optimizer.implementation == "fused" else ACCESSES[name]
        moved = float(accesses * max(weight_bytes, state_bytes))
    if recipe.master != "none":
        moved += DTYPE_BYTES[recipe.params]  # the copy in the working precision is written
    return moved


def on_host(job: TrainingJob) -> bool:
    """Whether the optimizer runs on the host: offloaded itself, or with FSDP2's parameters, since its CPUOffloadPolicy
    keeps gradients and states there ("the optimizer step runs on CPU": torch ``fsdp/_fully_shard/_fsdp_api.py``).
    """
    sharded = job.framework.data_parallel == "torch" and job.layout.zero_stage == 3
    return job.optimizer.offload != "none" or (sharded and job.parameter_offload != "none")


class OffloadTime(Record):
    """The time per step of offloading, and the rates that were assumed."""

    seconds: float
    assumptions: tuple[Assumption, ...]


def offload_seconds(job: TrainingJob, shard: Shard, sharing: Sharing, rates: Rates) -> OffloadTime:
    """Compute the seconds per step of offloading: transfers over PCIe and from NVMe, and an optimizer on the host."""
    seconds, assumed = 0.0, []
    recipe, parameters = job.recipe, shard.trained
    # an offloaded shard is copied to the GPU for each forward, and for each backward unless FSDP keeps it gathered
    stays_gathered = job.layout.zero_stage == 3 and not sharing.reshards
    fetches = job.gradient_accumulation_steps * (1 if stays_gathered else 2)
    if on_host(job):  # gradients go to the host, updated parameters come back
        transferred = parameters * (DTYPE_BYTES[recipe.gradients] + DTYPE_BYTES[recipe.params])
        seconds += transferred / rates.host_bandwidth
        one_loop = job.framework.optimizers.own_kernels or job.optimizer.implementation == "fused"
        rate = HOST_ADAM_PER_SECOND if one_loop else HOST_ADAM_PER_SECOND / TORCH_SLOWER
        seconds += parameters * job.layout.gpus_per_node / rate
        why = "DeepSpeed's CPU-Adam on two sockets (Ren et al. 2021, table 4)"
        if not one_loop:
            why = f"torch's, operation by operation: {TORCH_SLOWER} times slower than {why}"
        assumed.append(Assumption("the optimizer on the host", f"{rate:.1e} parameters/s a node", why))
    if job.parameter_offload != "none":
        seconds += shard.bytes * fetches / rates.host_bandwidth
    nvme_bytes = 0.0
    if job.optimizer.offload == "nvme":
        nvme_bytes += 2.0 * parameters * SWAPPED_BYTES  # read and written
    if job.parameter_offload == "nvme":
        nvme_bytes += shard.bytes * fetches
    if nvme_bytes:
        seconds += nvme_bytes / (NVME_GBS * GB)
        assumed.append(Assumption("NVMe drives", f"{NVME_GBS} GB/s per GPU", "one PCIe 4 drive per GPU"))
    return OffloadTime(seconds, tuple(assumed))


class SecondPasses(Record):
    """Seconds that one micro-batch spends in forward passes without gradients."""

    arithmetic_seconds: float = 0.0
    """Operations that arithmetic bounds."""
    memory_seconds: float = 0.0
    """Operations that memory traffic bounds."""
    gather_seconds: float = 0.0
    """Gathering parameters that FSDP2 shards as one unit: nothing of the pass can hide it."""


NONE = SecondPasses()


class PassCounts(Record):
    """Forward passes without gradients in one micro-batch."""

    own_passes: int
    """Passes of the trained model itself."""
    reference_passes: int
    """Passes of a reference or teacher that is a model of its own."""


def passes_of(job: TrainingJob) -> PassCounts:
    """Count the forward passes without gradients in a micro-batch.

    Objectives that compare with a reference run it once. KTO also runs the mismatched pairs of prompt and completion
    that estimate a divergence, through the model and through its reference. Without a copy of its own, the reference
    is the trained model, with its adapters switched off.
    """
    objective = job.objective
    if objective.name not in COMPARED:
        return PassCounts(own_passes=0, reference_passes=len(job.auxiliary_models))
    mismatched = 1 if objective.name == "kto" else 0
    of_reference = (1 + mismatched) if objective.reference in SECOND_PASSES else 0
    if job.auxiliary_models:
        return PassCounts(own_passes=mismatched, reference_passes=of_reference)
    return PassCounts(own_passes=mismatched + of_reference, reference_passes=0)


def second_passes(job: TrainingJob, architecture: Architecture, rates: Rates, sharing: Sharing) -> SecondPasses:
    """Compute the seconds per micro-batch of all forward passes without gradients (:func:`passes_of`)."""
    counts = passes_of(job)
    passes = NONE
    if counts.own_passes:
        passes = _forward(job, architecture, rates, counts.own_passes)
    if counts.reference_passes and job.auxiliary_models:
        companion = job.auxiliary_models[0]
        plain = job._replace(method="full", lora=None, architecture=companion.architecture)
        other_model = _forward(plain, companion.architecture, rates, counts.reference_passes)
        data = 0.0
        if sharing.item_bytes.zero_stage == 3:
            parameters = _parameters(plain, companion.architecture, rates)
            data = counts.reference_passes * gather_seconds(sharing.dense_copies, parameters, sharing.item_bytes)
        passes = SecondPasses(
            passes.arithmetic_seconds + other_model.arithmetic_seconds,
            passes.memory_seconds + other_model.memory_seconds,
            data,
        )
    return passes


def _forward(job: TrainingJob, architecture: Architecture, rates: Rates, times: int) -> SecondPasses:
    """Compute the seconds of ``times`` forward passes of a model that is not divided into pipeline stages."""
    model_cost = parts_of(architecture, shape_of(job), rates)
    (stage,) = stages_of(architecture, job, 1)
    arithmetic, memory = model_cost.head_cost.forward
    for count, cost in zip(stage.layers_by_run, model_cost.layer_costs, strict=True):
        arithmetic += count * cost.forward.arithmetic_seconds
        memory += count * cost.forward.memory_seconds
    return SecondPasses(times * arithmetic, times * memory)


def _parameters(job: TrainingJob, architecture: Architecture, rates: Rates) -> int:
    """Count the parameters of a whole model on one rank, before FSDP shards them."""
    model_cost = parts_of(architecture, shape_of(job), rates)
    (stage,) = stages_of(architecture, job, 1)
    layers = sum(
        count * (cost.dense_parameters + cost.expert_parameters)
        for count, cost in zip(stage.layers_by_run, model_cost.layer_costs, strict=True)
    )
    return layers + model_cost.head_cost.embedding_parameters + model_cost.head_cost.head_parameters


def step_time(job: TrainingJob, gpu: Gpu) -> StepTime:
    """Compute the time of one optimizer step of ``job`` on ``gpu``: a roofline model, good for ranking plans.

    Added to the micro-batches of the slowest pipeline rank is what happens once per step: the optimizer, the reduction
    of gradients below ZeRO-3, the pipeline bubble and transfers to the host.

    Raises:
        MissingRateError: the GPU's record lacks a rate without which there is no answer.
        UnsupportedError: a rough model, whose layers are not known.
    """
    architecture = job.architecture
    if isinstance(architecture, Rough):
        raise UnsupportedError(
            "a rough model has no layers to time", "name a model or write its architecture", "/model/rough"
        )
    layout, micro_batches, shape = job.layout, job.gradient_accumulation_steps, shape_of(job)
    rates = rates_of(
        gpu,
        job.recipe.compute,
        layout.gpus_per_node,
        fp8=shape.fp8_products,
        engine_attention=job.framework.transformer_engine,
    )
    wires = wires_of(job, architecture.hidden_size, shape.item_bytes, rates)
    sharing = _sharing(job, architecture, rates)
    stages = stages_of(architecture, job, layout.pipeline)
    times = _stage_times(job, architecture, stages, wires, sharing, rates)
    slowest = max(times, key=lambda time: time.seconds)
    shard = _shard(job, slowest, sharing)
    update = step_seconds(job, shard.trained, rates, architecture.hidden_size)
    transfers = offload_seconds(job, shard, sharing, rates)
    offload = transfers.seconds
    if job.checkpointing.offload != "none":
        offload += _activation_offload(job, architecture, slowest, rates) * micro_batches
    forward_only = second_passes(job, architecture, rates, sharing) if job.objective.loss_code else NONE
    compute = micro_batches * (slowest.arithmetic_seconds + forward_only.arithmetic_seconds) + update.arithmetic_seconds
    accumulation = _accumulation_bytes(job, slowest) / rates.hbm_bandwidth
    hbm = micro_batches * (slowest.memory_seconds + forward_only.memory_seconds + accumulation) + update.memory_seconds
    data = (
        micro_batches * (slowest.exposed_data_seconds + forward_only.gather_seconds) + slowest.last_exposed_data_seconds
    )
    exchanges = Exchanges(
        tensor=micro_batches * slowest.exposed_tensor_seconds,
        context=micro_batches * slowest.exposed_context_seconds,
        expert=micro_batches * slowest.exposed_expert_seconds,
        data=data + _after_backward(job, slowest, sharing, rates),
        pipeline=pipeline_seconds(layout, micro_batches, wires.pipeline_seconds),
    )
    bubble = bubble_seconds(layout, micro_batches, stages, times, slowest)
    seconds = compute + hbm + exchanges.seconds + bubble + offload
    sequences = job.rows * job.head.text_columns * micro_batches * layout.data
    tokens_per_gpu = sequences * job.sequence_length / layout.world_size
    flops = _flops(job, architecture, rates)
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


def _stage_times(
    job: TrainingJob,
    architecture: Architecture,
    stages: tuple[Stage, ...],
    wires: Wires,
    sharing: Sharing,
    rates: Rates,
) -> list[PartTime]:
    """Compute the seconds and parameters of each pipeline stage for one micro-batch; equal layers are computed once."""
    model_cost = parts_of(architecture, shape_of(job), rates)
    recomputed_share = _recomputed(job, architecture)
    different = {id(cost): cost for cost in model_cost.layer_costs}
    times = {key: layer_time(job, cost, wires, recomputed_share, sharing, rates) for key, cost in different.items()}
    layers = [times[id(cost)] for cost in model_cost.layer_costs]
    return [stage_time(stage, layers, model_cost.head_cost, wires, sharing) for stage in stages]


class Shard(Record):
    """A rank's part of the parameters of its pipeline stage, as ZeRO divides the optimizer's states."""

    trained: float
    """Trained parameters that the rank updates."""
    bytes: float
    """Bytes of the rank's part of all parameters."""


def _shard(job: TrainingJob, stage: PartTime, sharing: Sharing) -> Shard:
    """Return what one data-parallel rank of a pipeline stage holds and updates."""
    dense_ranks = sharing.dense_copies.shard_links.ranks if job.layout.zero_stage else 1
    expert_ranks = sharing.expert_copies.shard_links.ranks if job.layout.zero_stage else 1
    return Shard(
        trained=stage.trained_dense_parameters / dense_ranks + stage.trained_expert_parameters / expert_ranks,
        bytes=(stage.dense_parameters / dense_ranks + stage.expert_parameters / expert_ranks)
        * DTYPE_BYTES[job.recipe.params],
    )


def _sharing(job: TrainingJob, architecture: Architecture, rates: Rates) -> Sharing:
    """Collect how data-parallel ranks share parameters and gradients, which is the same for every layer."""
    reshards = gathers_again(job)
    experts = max((block.mlp.experts for block, _ in architecture.blocks if isinstance(block.mlp, Moe)), default=0)
    return Sharing(
        dense_copies=dense_copies(job, rates),
        expert_copies=expert_copies(job, rates),
        item_bytes=precision(job),
        reshards=reshards,
        gathers_every_micro_batch=reshards or job.layout.pipeline == 1,
        reduces_every_micro_batch=reduces_every(job) or job.gradient_accumulation_steps == 1,
        expert_padding_factor=timing_of(job.framework).experts_padding(job, experts) if experts else 1.0,
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


class TokenFlops(Record):
    """FLOPs per token of the whole model, forward and backward."""

    model: float
    """The model's math, which MFU counts."""
    recompute: float
    """What activation checkpointing computes again."""
    attention_recompute: float
    """The scores that attention kernels compute again in backward."""


def _flops(job: TrainingJob, architecture: Architecture, rates: Rates) -> TokenFlops:
    """Return the FLOPs per token of the whole model; the count is cached."""
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
    return flops._replace(recompute=flops.recompute * _recomputed(job, architecture))


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
        loss_is_vocab_parallel=False,
    )
    tokens = job.sequence_length
    model_cost: ModelCost = parts_of(architecture, whole_model, rates)
    stage = stages_of(architecture, job, 1)[0]
    mtp_projection = TRAINED_PARAMETER_FLOPS * tokens * model_cost.head_cost.mtp_projection_parameters
    head = model_cost.head_cost.flops + model_cost.head_cost.backward_flops
    model = head * (1 + stage.mtp_layers) + mtp_projection * stage.mtp_layers
    recompute = attention_recompute = 0.0
    for count, cost in zip(stage.layers_by_run, model_cost.layer_costs, strict=True):
        model += count * (cost.flops + cost.backward_flops)
        recompute += count * cost.recomputed_flops
        attention_recompute += count * cost.attention_recompute_flops
    return TokenFlops(model / tokens, recompute / tokens, attention_recompute / tokens)


def _accumulation_bytes(job: TrainingJob, slowest: PartTime) -> float:
    """Compute the bytes moved to add the gradients of one micro-batch to those of earlier ones, on the slowest rank."""
    gradient_bytes = DTYPE_BYTES[job.recipe.gradients] * (
        slowest.trained_dense_parameters + slowest.trained_expert_parameters
    )
    if (
        job.framework.sums_gradients_in_buffers
    ):  # the matrix product itself adds to the main gradient: a read and a write
        return 2.0 * gradient_bytes
    if job.gradient_accumulation_steps == 1 or job.layout.zero_stage == 3:
        return 0.0
    return 3.0 * gradient_bytes  # both terms are read, the sum is written


def _after_backward(job: TrainingJob, slowest: PartTime, sharing: Sharing, rates: Rates) -> float:
    """Compute the seconds of data-parallel exchanges once per step that the last backward does not hide.

    Below ZeRO-3 the gradients are reduced and, from ZeRO-1, the updated parameters are gathered. ZeRO-3 exchanges
    inside the micro-batches: 0.
    """
    zero_stage, item_bytes = job.layout.zero_stage, sharing.item_bytes
    if zero_stage == 3:
        return 0.0
    reduce = reduce_seconds(sharing.dense_copies, slowest.trained_dense_parameters, item_bytes)
    reduce += reduce_seconds(sharing.expert_copies, slowest.trained_expert_parameters, item_bytes)
    if zero_stage == 1 and not job.framework.has_sharding_engine:  # DDP reduces, ZeroRedundancyOptimizer sends
        reduce = all_reduce(
            sharing.dense_copies.shard_links, slowest.trained_dense_parameters * item_bytes.bytes_per_gradient
        )
    hides_reduce, hides_gather = overlaps(job)
    backward = (
        (slowest.arithmetic_seconds + slowest.memory_seconds) * 2 / 3
    )  # of a micro-batch: backward has twice the products
    forward = backward / 2
    seconds = exposed(reduce, backward, rates.collective_sm_share) if hides_reduce else reduce
    seconds *= job.gradient_accumulation_steps if sharing.reduces_every_micro_batch else 1
    if zero_stage:  # ranks update only their shards, and gather the parameters during the next forward
        gather = gather_seconds(sharing.dense_copies, slowest.trained_dense_parameters, item_bytes)
        gather += gather_seconds(sharing.expert_copies, slowest.trained_expert_parameters, item_bytes)
        seconds += exposed(gather, forward, rates.collective_sm_share) if hides_gather else gather
    return seconds


def _activation_offload(job: TrainingJob, architecture: Architecture, slowest: PartTime, rates: Rates) -> float:
    """Compute the seconds of offloading activations per micro-batch that the computation does not hide.

    The input of every layer goes to the host in forward and comes back in backward.
    """
    layout = job.layout
    tokens = job.rows * job.sequence_length // layout.context
    tokens = tokens // layout.tensor if layout.sequence else tokens
    layers = architecture.num_layers / layout.pipeline
    one_way = tokens * architecture.hidden_size * DTYPE_BYTES[job.recipe.compute] * layers / rates.host_bandwidth
    return max(0.0, 2 * one_way - slowest.arithmetic_seconds - slowest.memory_seconds)
