"""All pipeline ranks of a training job, or the worst of them alone."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from memcheck.accounts.estimate import Instant, Pools, RankEstimate
from memcheck.accounts.ranks import RankAtPeak, ResidentTensors, Tops, highest_rank
from memcheck.frameworks.torch.data_parallel import mixes_adapters, runs_chunk_by_chunk
from memcheck.frameworks.torch.pipelining import SPLIT, ranks_with_highest_peak, stage_parts
from memcheck.frameworks.torch.rank_steps import (
    Steps,
    TorchRank,
    TorchStates,
    distinct_micro_batches,
    states_of,
    step_key,
    unsharded_step_key,
)
from memcheck.frameworks.torch.resident import engine_of
from memcheck.job.keys import AnyBatch, any_batch, state_key
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture


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
    outside_lists = ("load", "save", "optimizer") if _makes_lists(job) else ("load", "save")
    before = max([count for name, count in tops if name not in outside_lists])
    lists = max([count for name, count in tops if name in outside_lists], default=0)
    default_stream, other_streams = stream_peaks(rank_at_peak)
    engine = engine_of(job, rank.tensors.units, recomputes=job.checkpointing.mode == "full")  # type: ignore[arg-type]
    if engine is not None:
        other_streams = engine.other_streams
    pools = Pools(
        largest=rank.step.largest_block,
        apart=max(0, default_stream + other_streams - peak) + rank_at_peak.resident.paged,
        others=other_streams,
        before=before if lists > before else 0,
        lists=lists,
    )
    unfilled = rank_at_peak.resident.unfilled
    if unfilled is not None:
        freed = before - sum([count for _, count in rank_at_peak.resident.components])
        pools = pools._replace(unfilled=unfilled.among(freed), unfilled_most=unfilled.most)
    highest_name, _ = max(tops, key=lambda top: top[1])
    if pools.before and highest_name != "optimizer":
        from memcheck.frameworks.torch.load_and_save import unfilled_whole

        most_unfilled = max(pools.unfilled_most, unfilled_whole(state_key(job), rank.tensors))
        pools = pools._replace(unfilled_most=most_unfilled)
    return RankEstimate(rank.number, instants, rank.parameters, host_bytes=host_bytes, pools=pools)


def _makes_lists(job: TrainingJob) -> bool:
    """Return whether torch's foreach optimizer allocates a list of temporaries, one per parameter, at the peak."""
    foreach = job.optimizer.implementation == "foreach" and not job.framework.own_engine
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
    contents = [(part.embedding, part.head, part.first > 0, layers[part.first : part.last]) for part in all_parts]
    if not chunked:
        return tuple(contents)
    from memcheck.frameworks.torch.interleaved import stages_of

    return tuple(tuple(contents[stage] for stage in stages_of(layout, rank)) for rank in range(pipeline_ranks))
