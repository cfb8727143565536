"""What the engine asks of torch's own data parallelism over transformers' models: ranks, host memory, step times.

All pipeline ranks of a training job are estimated, or the worst of them alone.

Host memory under torch.distributed: FSDP2's CPUOffloadPolicy pins the shard of every parameter, and its gradient is
copied to the host without waiting, which pins it, too (torch/distributed/fsdp/_fully_shard/_fsdp_param.py,
_fsdp_collectives.py). torch.distributed.checkpoint saves.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from memcheck.accounts.estimate import Instant, Pools, RankEstimate
from memcheck.accounts.ranks import Components, Part, RankAtPeak, ResidentTensors, Tops, highest_rank
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes, weight_bytes
from memcheck.autograd.tensor import ceil_div, round_up
from memcheck.frameworks.registry import (
    NO_SAVING,
    HostMemory,
    ModelStateBytes,
    Saving,
    Stack,
    Timing,
    WorstRank,
    block,
    of_node,
    optimizer_on_host,
)
from memcheck.frameworks.torch.data_parallel import mixes_adapters, runs_chunk_by_chunk, uses_fsdp
from memcheck.frameworks.torch.pipelining import (
    MESH,
    SPLIT,
    MeshGroups,
    all_to_all_buffers,
    ranks_with_highest_peak,
    stage_parts,
)
from memcheck.frameworks.torch.rank_steps import (
    Steps,
    TorchRank,
    TorchStates,
    distinct_micro_batches,
    states_of,
    step_key,
    unsharded_step_key,
)
from memcheck.frameworks.torch.resident import (
    engine_of,
    resident_dtype,
    shard_numel_of,
    shard_placement,
    sharding,
    states_dtype,
)
from memcheck.job.keys import AnyBatch, any_batch, state_key
from memcheck.job.types import DTYPE_BYTES, Layout, TrainingJob
from memcheck.models.parameters import parameters_by_group
from memcheck.models.types import Architecture, Rough


def parts_by_rank(num_layers: int, _job: TrainingJob, ways: int) -> list[list[tuple[Part, int]]]:
    """One run of layers for each rank."""
    return [[(part, 0)] for part in stage_parts(num_layers, ways)]


def overlaps(job: TrainingJob) -> tuple[bool, bool]:
    """FSDP2 prefetches, DDP reduces buckets during backward."""
    return True, job.layout.zero_stage == 3


def experts_padding(job: TrainingJob, experts: int) -> float:
    """Return the factor by which sharding pads a layer's stacked experts while they are gathered; 1.0 without padding.

    ``experts``: of the whole layer. FSDP2 shards the experts of a rank along dim 0.
    """
    if not uses_fsdp(job) or job.fsdp_version == 1:
        return 1.0
    local_experts = ceil_div(experts, job.layout.expert)
    ranks = job.layout.shard_group
    stack, shards = shard_placement(
        job, LocalTensor("experts", (local_experts, ranks, ranks), False, expert=True), ranks
    )
    return 1.0 if stack.sharded_dim else round_up(local_experts, shards) / local_experts


TIMING = Timing(
    layers_by_rank=parts_by_rank,
    context_kind=lambda _job: "torch",
    token_dispatch=lambda _job: "copies",
    overlaps_reduction_and_gather=overlaps,
    fuses_elementwise=lambda job: job.compile,
    copies_gathered_states=lambda job: "tensor" in job.framework.parallelism.degrees,
    repeats_kv_heads=lambda _job: False,
    fused_products=lambda _job: "",
    experts_padding=experts_padding,
)


def training_ranks(
    job: TrainingJob, architecture: Architecture, *, inventory: bool = False
) -> tuple[RankEstimate, ...]:
    """Return one estimate per pipeline rank. ``inventory``: with its largest tensors and its formulas."""
    return remembered_ranks(job if inventory else _shortened(job), architecture, inventory)


def _shortened(job: TrainingJob) -> TrainingJob:
    """Return the job without micro-batches that repeat earlier ones, if it has no pipeline."""
    return job if job.layout.pipeline > 1 else job._replace(gradient_accumulation_steps=distinct_micro_batches(job))


@lru_cache(maxsize=512)
def remembered_ranks(job: TrainingJob, architecture: Architecture, inventory: bool) -> tuple[RankEstimate, ...]:
    """Return the estimates of all pipeline ranks, cached: equal jobs of different plans share them.

    ``inventory``: also list the largest tensors and the formulas.
    """
    _require_modelled(job, architecture)
    numbers = tuple(range(job.layout.pipeline))
    states = states_of(state_key(job))
    if not inventory:
        peaks = peak_ranks(job, states, Behaviours(job, architecture), numbers)
        return tuple([estimate_of(job, rank) for rank in peaks])
    from memcheck.frameworks.torch.inventory import with_inventory

    by_version = [Steps(unsharded_step_key(step_key(job, torch)), architecture, inventory=True) for torch in job.torch]
    peaks = []
    for number in numbers:
        candidates = [steps.peak(number, states) for steps in by_version]
        peaks.append(highest_rank(candidates, states, job.run_micro_batches))
    return tuple([with_inventory(job, estimate_of(job, rank), torch_rank(rank)) for rank in peaks])


def _require_modelled(job: TrainingJob, architecture: Architecture) -> None:
    """Check that memcheck has a model of this combination; raise an error otherwise. Only unusual jobs load the
    checks.
    """
    shares = any(block.shared_with.later for block, _ in architecture.blocks)
    if shares or job.layout.pipeline_schedule in SPLIT or mixes_adapters(job):
        from memcheck.frameworks.torch.fsdp_limits import require_modelled

        require_modelled(job, architecture)


class Behaviours:
    """The steps of jobs that differ in their batch alone, under every behaviour of PyTorch that the job may meet."""

    __slots__ = ("_any_batch", "_architecture")

    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        """Prepare the steps for every version of PyTorch. ``job``: any of the jobs, which differ in their batch
        alone.
        """
        _require_modelled(job, architecture)
        self._architecture = architecture
        self._any_batch: dict[str, AnyBatch] = {}
        for torch in job.torch:
            self._find(job, torch)

    def steps(self, job: TrainingJob, torch: str) -> Steps:
        """Return the steps of a job with its batch, under the behaviour of one version of PyTorch."""
        job_of_any_batch = self._any_batch.get(torch) or self._find(job, torch)
        return _steps(job_of_any_batch, job.micro_batch_size, job.sequence_length, distinct_micro_batches(job))

    def _find(self, job: TrainingJob, torch: str) -> AnyBatch:
        key = self._any_batch[torch] = any_batch(unsharded_step_key(step_key(job, torch)), self._architecture)
        return key


@lru_cache(maxsize=2048)
def _steps(job: AnyBatch, micro_batch_size: int, sequence_length: int, micro_batches: int) -> Steps:
    return Steps(job.of(micro_batch_size, sequence_length, micro_batches), job.architecture)


def peak_ranks(
    job: TrainingJob, states: TorchStates, behaviours: Behaviours, numbers: tuple[int, ...]
) -> list[RankAtPeak]:
    """Return the pipeline ranks ``numbers``, each under the version of PyTorch that needs most memory.

    ``states``: the resident states of the job. ``behaviours``: recorded steps by version of PyTorch.
    """
    by_version = [behaviours.steps(job, torch) for torch in job.torch]
    peaks = []
    for number in numbers:
        candidates = [steps.peak(number, states) for steps in by_version]
        peaks.append(highest_rank(candidates, states, job.run_micro_batches))
    return peaks


def estimate_of(job: TrainingJob, rank_at_peak: RankAtPeak) -> RankEstimate:
    """Return the estimate of one rank: its step on top of the resident bytes, with loading before and saving after."""
    instants = _with_load_and_save(job, rank_at_peak.rank.tensors, rank_at_peak.instants())
    return _estimated(
        job, rank_at_peak, instants, rank_at_peak.rank.host_bytes, [(i.name, i.allocated_bytes) for i in instants]
    )


def torch_rank(rank_at_peak: RankAtPeak) -> TorchRank:
    """Return ``rank`` as torch's kind of rank, which it is in this room."""
    assert isinstance(rank_at_peak.rank, TorchRank)  # noqa: S101 - `Steps` makes no others
    return rank_at_peak.rank


def _estimated(
    job: TrainingJob, rank_at_peak: RankAtPeak, instants: tuple[Instant, ...], host_bytes: int, tops: Tops
) -> RankEstimate:
    """Return the estimate of one rank with what the caching allocator holds in addition to live tensors.

    ``tops``: every instant and its bytes, of which ``instants`` has one or all.
    """
    rank = torch_rank(rank_at_peak)
    peak = max([instant.allocated_bytes for instant in instants])
    with_lists = ("load", "save", "optimizer") if _makes_lists(job) else ("load", "save")
    live_elsewhere = max([count for name, count in tops if name not in with_lists])
    lists = max([count for name, count in tops if name in with_lists], default=0)
    default_stream, other_streams = stream_peaks(rank_at_peak)
    engine = engine_of(job, rank.tensors.units, recomputes=job.checkpointing.mode == "full")  # type: ignore[arg-type]
    if engine is not None:
        other_streams = engine.other_streams
    pools = Pools(
        largest=rank.step.largest_block,
        apart=max(0, default_stream + other_streams - peak) + rank_at_peak.resident.paged,
        others=other_streams,
        before=live_elsewhere if lists > live_elsewhere else 0,
        lists=lists,
    )
    unfilled = rank_at_peak.resident.unfilled
    if unfilled is not None:
        freed = live_elsewhere - sum([count for _, count in rank_at_peak.resident.components])
        pools = pools._replace(unfilled=unfilled.among(freed), unfilled_most=unfilled.most)
    highest_name, _ = max(tops, key=lambda top: top[1])
    if pools.before and highest_name != "optimizer":
        from memcheck.frameworks.torch.load_and_save import unfilled_whole

        most_unfilled = max(pools.unfilled_most, unfilled_whole(state_key(job), rank.tensors))
        pools = pools._replace(unfilled_most=most_unfilled)
    return RankEstimate(rank.number, instants, rank.parameters, host_bytes=host_bytes, pools=pools)


def _makes_lists(job: TrainingJob) -> bool:
    """Return whether torch's foreach optimizer allocates a list of temporaries, one per parameter, at the peak."""
    foreach = job.optimizer.implementation == "foreach" and not job.framework.has_sharding_engine
    return foreach and job.layout.pipeline == 1


def stream_peaks(rank_at_peak: RankAtPeak) -> tuple[int, int]:
    """Return the peak bytes of the default CUDA stream, and the sum of the peaks of all other streams.

    Both are 0 for a step that allocates on one stream only.
    """
    tops = torch_rank(rank_at_peak).step.stream_tops()
    if not tops:
        return 0, 0
    default, *others = tops
    other_peaks = [max([n_bytes for _, n_bytes in instants]) for instants in others]
    return rank_at_peak.bytes_of(default), sum(other_peaks)


def is_fixed_by_step(job: TrainingJob) -> bool:
    """Return whether neither loading nor saving nor evaluation can exceed the peak of the step."""
    loads_whole = job.framework.puts_whole_model_on_gpu(job.initialization.place)
    return not loads_whole and job.checkpoint.offload != "none" and job.evaluation is None


def _with_load_and_save(
    job: TrainingJob, resident: ResidentTensors, instants: tuple[Instant, ...]
) -> tuple[Instant, ...]:
    """Return the instants of a step together with loading, saving and evaluation, as far as these may exceed it."""
    if is_fixed_by_step(job):
        return instants
    from memcheck.frameworks.torch.load_and_save import around

    return around(job, resident, instants)


class Worst:
    """Finds the worst rank of jobs that differ in their batch alone."""

    __slots__ = ("_behaviours", "_numbers", "_states")

    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        """Find the ranks that may be worst. ``job``: any of the jobs, which differ in their batch alone."""
        self._numbers = tuple(
            ranks_with_highest_peak(job, _contents(architecture, job.layout, chunked=runs_chunk_by_chunk(job)))
        )
        self._behaviours = Behaviours(job, architecture)
        self._states: dict[bool, TorchStates] = {}

    def rank(self, job: TrainingJob) -> RankEstimate:
        """Return the rank with the highest peak, the first of equal ones, with the instant of the peak alone."""
        peaks = peak_ranks(job, self._states_of(job), self._behaviours, self._numbers)
        host_bytes = max([rank_at_peak.rank.host_bytes for rank_at_peak in peaks])
        if is_fixed_by_step(job):
            worst = peaks[0]
            if len(peaks) > 1:
                worst = max(peaks, key=lambda rank_at_peak: rank_at_peak.peak)
            tops = [(name, worst.bytes_of(((name, count),))) for name, count in worst.rank.tops]
            return _estimated(job, worst, worst.instant(), host_bytes, tops)
        fullest_rank = max(
            [estimate_of(job, rank_at_peak) for rank_at_peak in peaks], key=lambda rank: rank.peak.allocated_bytes
        )
        return fullest_rank._replace(instants=(fullest_rank.peak,), host_bytes=host_bytes)

    def _states_of(self, job: TrainingJob) -> TorchStates:
        """Return the job's resident states, cached: of the batch they only depend on whether it is accumulated."""
        several = job.gradient_accumulation_steps > 1
        known = self._states.get(several)
        if known is None:
            known = self._states[several] = states_of(state_key(job))
        return known


@lru_cache(maxsize=256)
def _contents(architecture: Architecture, layout: Layout, *, chunked: bool) -> tuple[Hashable, ...]:
    """Return for each pipeline rank a key of its layers and ends; ranks with equal keys have equal units.

    ``chunked``: a rank has several model chunks (virtual stages).
    """
    layers, pipeline_ranks = tuple(map(id, architecture.layers())), layout.pipeline
    stages = pipeline_ranks * (layout.virtual_stages if chunked else 1)
    all_parts = stage_parts(architecture.num_layers, stages, layout.fewer_layers)
    contents = [
        (part.has_embedding, part.has_head, part.first_layer > 0, layers[part.first_layer : part.end_layer])
        for part in all_parts
    ]
    if not chunked:
        return tuple(contents)
    from memcheck.frameworks.torch.interleaved import stages_of

    return tuple(tuple(contents[stage] for stage in stages_of(layout, rank)) for rank in range(pipeline_ranks))


STACKED_IN_FILES = ("dbrx", "gpt_oss", "llama4_text", "llama4")
"""Model types whose checkpoints hold experts as one tensor: nothing is stacked while they load."""


def loaded(job: TrainingJob, total: int) -> int:
    """Return the host bytes of a process while it loads weights of ``total`` bytes.

    Weights that keep their dtype are memory-mapped files. Only the experts that transformers stacks are copied.
    """
    return total if job.initialization.files_dtype != job.recipe.params else _stacked(job)


def _stacked(job: TrainingJob) -> int:
    """Count the parameters of experts that transformers stacks (conversion_mapping.py, MergeModulelist)."""
    model = job.architecture
    if isinstance(model, Rough) or not job.framework.runs_transformers:
        return 0
    return 0 if model.model_type in STACKED_IN_FILES else parameters_by_group(model).get("experts", 0)


def states(job: TrainingJob) -> Components:
    """Return the bytes on the host of offloaded parameters, gradients and optimizer states of a node's ranks.

    FSDP2's parameter offload includes gradients and states, even if the plan does not name them.
    """
    if job.parameter_offload != "cpu":
        return optimizer_on_host(job)
    layout = job.layout
    components = zip(("parameters", "gradients", "optimizer_states"), _shards(state_key(job)), strict=True)
    return tuple((name, count * layout.gpus_per_node // layout.pipeline) for name, count in components if count)


def whole_tensors(job: TrainingJob) -> tuple[LocalTensor, ...]:
    """The whole model's tensors, as a tensor-parallel rank has them."""
    return _whole_tensors(state_key(job))


@lru_cache(maxsize=64)
def _whole_tensors(job: TrainingJob) -> tuple[LocalTensor, ...]:
    """Return the tensors of the whole model on one tensor-parallel rank; a ``rough`` model has one per layer."""
    from memcheck.frameworks.torch.tower_tensors import model_tensors

    model = job.architecture
    if isinstance(model, Rough):
        layer = ceil_div(model.parameters, job.layout.tensor * model.layers)
        return tuple(LocalTensor(f"layer {i}", (layer,), trained=True) for i in range(model.layers))
    return tuple(t for tensors in model_tensors(job, model) for t in tensors)


@lru_cache(maxsize=1024)
def _shards(job: TrainingJob) -> tuple[int, int, int]:
    """Return the pinned bytes of parameters, gradients and optimizer states of a rank that would hold every layer."""
    shards = sharding(job)
    parameters = gradients = states = 0
    tensors = whole_tensors(job)
    tensor_counts: dict[int, tuple[LocalTensor, int]] = {}  # layers that are alike share their tensors
    for t in tensors:
        tensor_counts[id(t)] = (t, tensor_counts.get(id(t), (t, 0))[1] + 1)
    for t, count in tensor_counts.values():
        shard_numel = shard_numel_of(job, t, shards.parameter_ranks, shards.uses_flat_buffers)
        parameters += count * block(weight_bytes(t, resident_dtype(job, t), shard_numel), pinned=True)
        if t.trained:
            gradients += count * block(shard_numel * DTYPE_BYTES[t.dtype or job.recipe.gradients], pinned=True)
            states += count * optimizer_state_bytes(t, shard_numel, job.optimizer.name, states_dtype(job, t))
    return parameters, gradients, states


def saving(job: TrainingJob, unsharded: ModelStateBytes) -> Saving:
    """Return what a checkpoint copies to the host: a full state dict on rank 0, or each rank's part if asynchronous."""
    model, states = ("parameters", unsharded.parameters), ("optimizer_states", unsharded.optimizer_states)
    if job.checkpoint.state_dict != "full":
        if not job.checkpoint.asynchronous:
            return NO_SAVING
        return "every rank copying its part", tuple((name, of_node(job, count)) for name, count in (model, states))
    if job.checkpoint.offload == "none" or not is_sharded(job):
        return NO_SAVING
    return "rank 0 gathering model and optimizer states", (model, states)


def is_sharded(job: TrainingJob) -> bool:
    """Whether data-parallel ranks hold parts of the parameters."""
    return job.layout.zero_stage >= 2 and job.layout.shard_group > 1


HOST = HostMemory(loaded=loaded, laid_out=lambda _job, _total, _room: (), states=states, saving=saving)


def ranks(job: TrainingJob, architecture: Architecture, _arch: str | None, inventory: bool) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank; the GPU decides nothing."""
    return training_ranks(job, architecture, inventory=inventory)


def worst(job: TrainingJob, architecture: Architecture, _arch: str | None) -> WorstRank:
    """What finds the worst rank; the GPU decides nothing."""
    return Worst(job, architecture)


def states_floor(job: TrainingJob, architecture: Architecture) -> int:
    """Return a lower bound of the peak in bytes, from states alone, with which searches rule out plans."""
    from memcheck.frameworks.torch import fsdp_limits

    return fsdp_limits.states_floor(job, architecture)


def trainable(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Count the trained parameters, which differ from all where something is frozen or adapted, and the adapters'
    own.
    """
    from memcheck.frameworks.torch.tower_tensors import trainable_parameters

    return trainable_parameters(job, architecture)


def exchanged(job: TrainingJob) -> MeshGroups:
    """Return the process groups of the device mesh, with the buffers of DeepEP or HybridEP if one dispatches tokens."""
    if job.layout.expert == 1 or job.option("dispatcher", "torch") == "torch":
        return MESH

    return all_to_all_buffers(job) or MESH


STACK = Stack(
    ranks=ranks,
    worst_rank=worst,
    states_floor=states_floor,
    trained_parameters=trainable,
    process_groups=exchanged,
    host_memory=HOST,
)
