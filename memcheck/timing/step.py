"""The seconds of one optimizer step: the slowest pipeline rank, what it waits for, and what comes after its last
micro-batch.
"""

from __future__ import annotations

from memcheck.catalog.types import Gpu
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import timing_of
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture, Moe, Rough
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
from memcheck.timing.exchanges import Wires, wires
from memcheck.timing.model import REMEMBERED, ModelCost, Stage, parts_of, shape_of, stages_of
from memcheck.timing.optimizer import offload_seconds, step_seconds
from memcheck.timing.rates import TERA, Rates, rates
from memcheck.timing.second_passes import NONE, second_passes
from memcheck.timing.stage import Sharing, StageTime, bubble_seconds, layer_time, pipeline_seconds, stage_time
from memcheck.timing.types import Exchanges, StepTime


def step_time(job: TrainingJob, gpu: Gpu) -> StepTime:
    """The time of one optimizer step of ``job`` on ``gpu``: a roofline model, good for ranking plans.

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
    r = rates(gpu, job.recipe.compute, shape.fp8, layout.gpus_per_node, job.framework.transformer_engine)
    parts = parts_of(architecture, shape, r)
    w = wires(job, architecture.hidden_size, shape.item_bytes, r)
    sharing = _sharing(job, architecture, r)
    share = _recomputed(job, architecture)
    known = {id(cost): layer_time(job, cost, w, share, sharing, r) for cost in {id(c): c for c in parts.costs}.values()}
    layers = [known[id(cost)] for cost in parts.costs]
    stages = stages_of(architecture, job, layout.pipeline)
    times = [stage_time(stage, layers, parts, w, r, sharing) for stage in stages]
    return _answer(job, architecture, r, stages, times, w, sharing, share)


def _sharing(job: TrainingJob, architecture: Architecture, r: Rates) -> Sharing:
    again = gathers_again(job)
    experts = max((block.mlp.experts for block, _ in architecture.blocks if isinstance(block.mlp, Moe)), default=0)
    return Sharing(
        dense=dense_copies(job, r),
        experts=expert_copies(job, r),
        precision=precision(job),
        reshards=again,
        gathers=again or job.layout.pipeline == 1,
        reduces=reduces_every(job) or job.gradient_accumulation_steps == 1,
        padding=timing_of(job.framework).experts_padding(job, experts) if experts else 1.0,
    )


def _recomputed(job: TrainingJob, architecture: Architecture) -> float:
    """Share of the layers that are recomputed."""
    if job.checkpointing.mode == "none":
        return 0.0
    if job.option("recompute_method") == "block":  # Megatron's
        count = job.option("recompute_num_layers")
        held = max(1, architecture.num_layers // job.layout.pipeline)
        return min(1.0, count / held) if isinstance(count, int) else 1.0
    return 1.0 / job.checkpointing.every_n_layers


def _answer(
    job: TrainingJob,
    architecture: Architecture,
    r: Rates,
    stages: tuple[Stage, ...],
    times: list[StageTime],
    w: Wires,
    sharing: Sharing,
    share: float,
) -> StepTime:
    layout, m = job.layout, job.gradient_accumulation_steps
    slowest = max(times, key=lambda t: t.seconds)
    shards = sharing.dense.shard.ranks if layout.zero_stage else 1
    parameters = slowest.dense_trained / shards + slowest.experts_trained / (
        sharing.experts.shard.ranks if layout.zero_stage else 1
    )
    step = step_seconds(job, parameters, r, architecture.hidden_size)
    resting = (slowest.dense + slowest.experts) * DTYPE_BYTES[job.recipe.params] / shards
    passes = m * (2 if sharing.reshards else 1) if layout.zero_stage == 3 else 2 * m
    offload, assumed = offload_seconds(job, parameters, resting, passes, r)
    if job.checkpointing.offload != "none":
        offload += _activation_offload(job, architecture, slowest, r) * m
    beside = second_passes(job, architecture, r, sharing) if job.objective.code else NONE
    compute = m * (slowest.arithmetic + beside.arithmetic) + step[0]
    hbm = m * (slowest.memory + beside.memory + _accumulation(job, slowest) / r.hbm) + step[1]
    exchanges = Exchanges(
        tensor=m * slowest.tensor,
        context=m * slowest.context,
        expert=m * slowest.expert,
        data=m * (slowest.data + beside.data) + slowest.last_data + _after(job, slowest, sharing, r),
        pipeline=pipeline_seconds(layout, m, w.pipeline),
    )
    bubble = bubble_seconds(layout, m, stages, times, slowest)
    seconds = compute + hbm + exchanges.seconds + bubble + offload
    tokens = job.rows * job.head.columns * job.sequence_length * m * layout.data / layout.world_size
    model, again, kernels = _flops(job, architecture, r, share)
    model_rate, hardware_rate = model * tokens / seconds, (model + again + kernels) * tokens / seconds
    return StepTime(
        seconds=seconds,
        compute_seconds=compute,
        hbm_seconds=hbm,
        exposed_communication_seconds=exchanges.seconds,
        bubble_seconds=bubble,
        offload_seconds=offload,
        tokens_per_second_per_gpu=tokens / seconds,
        model_tflops_per_gpu=model_rate / TERA,
        hardware_tflops_per_gpu=hardware_rate / TERA,
        model_flops_share=model_rate / r.peak,
        recompute_share=again / model,
        exchanges=exchanges,
        assumptions=r.assumptions + assumed,
    )


def _flops(job: TrainingJob, architecture: Architecture, r: Rates, share: float) -> tuple[float, float, float]:
    """Per token: of the model, what recompute adds, what attention's kernels add. Of the whole model on one rank."""
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
        r,
    )
    found = _counted.get(key)
    if found is None or found[0] is not architecture:
        if len(_counted) >= REMEMBERED:
            _counted.clear()
        found = _counted[key] = (architecture, *_count(job, architecture, r))
    _, model, again, kernels = found
    return model, again * share, kernels


_counted: dict[tuple[object, ...], tuple[Architecture, float, float, float]] = {}


def _count(job: TrainingJob, architecture: Architecture, r: Rates) -> tuple[float, float, float]:
    """Operations per token on one rank: the model's, recompute's in every layer, attention kernels'."""
    whole = shape_of(job)._replace(
        batch=1,
        sequence=job.sequence_length,
        context=1,
        tensor=1,
        sequence_parallel=False,
        expert=1,
        expert_tensor=1,
        imbalance=1.0,
        head_sharded=False,
    )
    parts: ModelCost = parts_of(architecture, whole, r)
    alone = stages_of(architecture, job, 1)[0]
    joined = 6.0 * job.sequence_length * parts.head.mtp_projection_parameters
    model = (parts.head.flops + parts.head.backward_flops) * (1 + alone.predictions) + joined * alone.predictions
    again = kernels = 0.0
    for count, cost in zip(alone.layers, parts.costs, strict=True):
        model += count * (cost.flops + cost.backward_flops)
        again += count * cost.recomputed_flops
        kernels += count * cost.kernel_flops
    tokens = job.sequence_length
    return model / tokens, again / tokens, kernels / tokens


def _accumulation(job: TrainingJob, t: StageTime) -> float:
    """Bytes of adding one micro-batch's gradients to those of earlier ones."""
    if job.framework.own_gradients:  # the product accumulates in the main gradient: read 4, write 4
        return 2.0 * DTYPE_BYTES[job.recipe.gradients] * (t.dense_trained + t.experts_trained)
    if job.gradient_accumulation_steps == 1 or job.layout.zero_stage == 3:
        return 0.0
    return 3.0 * DTYPE_BYTES[job.recipe.gradients] * (t.dense_trained + t.experts_trained)


def _after(job: TrainingJob, t: StageTime, s: Sharing, r: Rates) -> float:
    """Below stage 3: gradients that are reduced and parameters that are gathered once a step, as far as the last
    backward pass does not hide them.
    """
    stage, p = job.layout.zero_stage, s.precision
    if stage == 3:
        return 0.0
    reduce = reduce_seconds(s.dense, t.dense_trained, p) + reduce_seconds(s.experts, t.experts_trained, p)
    if stage == 1 and not job.framework.own_engine:  # DDP reduces, ZeroRedundancyOptimizer sends
        reduce = all_reduce(s.dense.shard, t.dense_trained * p.reduced)
    hides_reduce, hides_gather = overlaps(job)
    backward = (t.arithmetic + t.memory) * 2 / 3
    waits = exposed(reduce, backward, r.collective_sm_share) if hides_reduce else reduce
    repeats = job.gradient_accumulation_steps if s.reduces else 1
    waits *= repeats
    if stage:
        back = gather_seconds(s.dense, t.dense_trained, p) + gather_seconds(s.experts, t.experts_trained, p)
        waits += exposed(back, backward / 2, r.collective_sm_share) if hides_gather else back
    return waits


def _activation_offload(job: TrainingJob, architecture: Architecture, t: StageTime, r: Rates) -> float:
    """The input of every layer goes to the host in forward and comes back in backward, overlapping the computation."""
    layout = job.layout
    rows = job.rows * job.sequence_length // layout.context
    rows = rows // layout.tensor if layout.sequence else rows
    held = architecture.num_layers / layout.pipeline
    each = rows * architecture.hidden_size * DTYPE_BYTES[job.recipe.compute] * held / r.host
    return max(0.0, 2 * each - t.arithmetic - t.memory)
