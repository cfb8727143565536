"""The engine's door: one job on one GPU in, one estimate out."""

from __future__ import annotations

from memcheck.architecture.parameters import count_parameters
from memcheck.architecture.types import Architecture, Rough
from memcheck.catalog.types import Gpu
from memcheck.job.types import InferenceJob, Overhead, TrainingJob
from memcheck.memory.overhead import items, slack
from memcheck.memory.training import training_ranks, worst_rank
from memcheck.memory.types import Estimate, Formula, HostMoment, RankEstimate

MODELED = Overhead()


def estimate(
    job: TrainingJob | InferenceJob,
    gpu: Gpu,
    overhead: Overhead = MODELED,
    *,
    inventory: bool = False,
    every_rank: bool = True,
) -> Estimate:
    """Predict the peak memory of every pipeline rank; the worst one is the answer.

    ``inventory``: also collect the largest live tensors at the peak (about twice the time). ``every_rank``: otherwise,
    and without ``inventory``, the answer has the worst rank alone, and of that the highest instant; its figures stay
    the same.

    Raises:
        UnsupportedError: the job asks for something that has no memory model.
    """
    every_rank = every_rank or inventory
    if isinstance(job, TrainingJob) and job.options:
        from memcheck.memory.unmodelled import refuse

        refuse(job)
    if isinstance(job, InferenceJob):
        from memcheck.memory.inference import inference_ranks

        ranks = inference_ranks(job, inventory=inventory)
    elif isinstance(job.architecture, Rough):
        from memcheck.memory.rough import rough_ranks

        ranks = rough_ranks(job)
    elif job.framework == "megatron":
        from memcheck.memory.megatron.ranks import megatron_ranks, megatron_worst
        from memcheck.memory.megatron.workspaces import Device

        device = Device(gpu.arch)
        if every_rank:
            ranks = megatron_ranks(job, job.architecture, device, inventory=inventory)
        else:
            ranks = (megatron_worst(job, job.architecture, device),)
    elif every_rank:
        ranks = training_ranks(job, job.architecture, inventory=inventory)
    else:
        ranks = (worst_rank(job, job.architecture),)
    worst = max(ranks, key=lambda r: r.peak.allocated_bytes)
    return _answer(job, gpu, overhead, ranks, worst)


def _answer(
    job: TrainingJob | InferenceJob,
    gpu: Gpu,
    overhead: Overhead,
    ranks: tuple[RankEstimate, ...],
    worst: RankEstimate,
) -> Estimate:
    from memcheck.memory.interval import interval

    peak = worst.peak
    allocated = peak.allocated_bytes
    extra = slack(job, gpu, overhead, allocated)
    reserved = allocated + extra.fragmentation
    device = reserved + extra.context_and_nccl
    components = dict(peak.components_bytes)
    components["fragmentation"] = components.get("fragmentation", 0) + extra.fragmentation
    components["context_and_nccl"] = components.get("context_and_nccl", 0) + extra.context_and_nccl
    parameters, trainable = _counts(job)
    moments = _host(job, ranks, gpu, extra.context_and_nccl)
    highest = max(moments, key=lambda m: m.bytes, default=None)
    return Estimate(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        capacity_bytes=gpu.memory_bytes,
        interval_bytes=interval(job, allocated, device, gpu.memory_bytes, extra.context_and_nccl),
        instant=peak.name,
        operation=peak.operation,
        pipeline_rank=worst.pipeline_rank,
        components_bytes={k: v for k, v in components.items() if v},
        parameters=parameters,
        trainable_parameters=trainable,
        host_bytes_per_node=highest.bytes if highest else 0,
        host_components=highest.components if highest else (),
        host_moments=moments,
        ranks=ranks,
        largest=worst.largest,
        formulas=worst.formulas + _overhead_formulas(job, gpu, overhead, allocated) if worst.formulas else (),
        cache_bytes=extra.cache,
    )


def _overhead_formulas(
    job: TrainingJob | InferenceJob, gpu: Gpu, overhead: Overhead, allocated: int
) -> tuple[Formula, ...]:
    """What lies between allocated and device bytes, one line per term."""
    return tuple(
        Formula(t.component, t.name, "beyond the live tensors of the step", t.bytes, t.source)
        for t in items(job, gpu, overhead, allocated)
    )


def _counts(job: TrainingJob | InferenceJob) -> tuple[int, int]:
    """Parameters of the whole model, and how many of them are trained (adapters included in both)."""
    if isinstance(job.architecture, Rough):
        return job.architecture.parameters, 0 if isinstance(job, InferenceJob) else job.architecture.parameters
    architecture = job.architecture
    what = None if isinstance(job, InferenceJob) else (job.framework, job.method, job.lora, job.freeze)
    found = _counted.get((id(architecture), what))
    if found is None or found[0] is not architecture:
        if len(_counted) >= COUNTED:
            _counted.clear()
        found = _counted[id(architecture), what] = (architecture, *_count(job, architecture))
    return found[1:]


COUNTED = 256
_counted: dict[tuple[int, object], tuple[Architecture, int, int]] = {}
"""By identity of the architecture, which takes longer to hash than to count."""


def _count(job: TrainingJob | InferenceJob, architecture: Architecture) -> tuple[int, int]:
    total = count_parameters(architecture)
    if isinstance(job, InferenceJob):
        return total, 0
    if job.method == "full" and not job.freeze:
        return total, total
    from memcheck.memory.training import trainable_parameters

    trained, added = trainable_parameters(job, architecture)
    return total + added, trained


def _host(
    job: TrainingJob | InferenceJob, ranks: tuple[RankEstimate, ...], gpu: Gpu, outside: int
) -> tuple[HostMoment, ...]:
    """Host memory of one node from loading to saving; a serving engine's is not modelled."""
    if isinstance(job, InferenceJob):
        return ()
    from memcheck.memory.host import host_moments

    total, trained = _counts(job)
    kept = max(r.host_bytes for r in ranks) * job.layout.gpus_per_node
    return host_moments(job, total, trained, kept, gpu.memory_bytes - outside)
