"""The engine's door: one job on one GPU in, one estimate out."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.accounts.estimate import Estimate, HostMoment, RankEstimate
from memcheck.catalog.names import Gpu
from memcheck.frameworks.registry import stack_of
from memcheck.job.types import InferenceJob, Overhead, TrainingJob
from memcheck.memory.allocator import residuals
from memcheck.memory.host import host_moments
from memcheck.memory.interval import PlanFigures, ends, interval_kinds
from memcheck.memory.overhead import Slack, Surroundings, slack, surroundings
from memcheck.memory.unmodelled import refuse, refuse_extremes
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture, Rough
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.frameworks.registry import WorstRank
    from memcheck.memory.interval import Kinds

MODELED = Overhead()
"""Overhead as memcheck models it: the plan states none."""


def estimate(
    job: TrainingJob | InferenceJob,
    gpu: Gpu,
    overhead: Overhead = MODELED,
    *,
    inventory: bool = False,
    every_rank: bool = True,
) -> Estimate:
    """Predict the peak memory of a job on a GPU: the estimate of its worst pipeline rank, in bytes.

    ``overhead``: a policy that states the overhead in place of the model's. ``inventory``: also collect the largest
    live tensors at the peak, which takes twice the time. ``every_rank``: False leaves out the other ranks and all but
    the highest instant, unless ``inventory`` asks for them. The figures of the worst rank stay the same.

    Raises:
        UnsupportedError: the job asks for something that has no memory model.
    """
    estimator = Estimator(job, gpu, overhead)
    return estimator.ranks(job, inventory=inventory) if every_rank or inventory else estimator.worst(job)


class Estimator:
    """Estimates jobs that differ only in their batch, and keeps what does not depend on the batch."""

    __slots__ = ("_gpu", "_kinds", "_overhead", "_padded", "_surroundings", "_worst", "hosts")

    def __init__(self, job: TrainingJob | InferenceJob, gpu: Gpu, overhead: Overhead) -> None:
        """``job``: any of the jobs, which differ in their batch alone.

        Raises:
            UnsupportedError: it asks for something that has no memory model.
        """
        refuse_extremes(job)
        if isinstance(job, TrainingJob):
            refuse(job)
        self._gpu, self._overhead = gpu, overhead
        self._surroundings: Surroundings | None = None
        self._kinds: Kinds | None = None
        self.hosts: dict[tuple[bool, int], tuple[HostMoment, ...]] = {}
        """By whether there are several micro-batches, and what a step keeps on the host."""
        self._worst: WorstRank | None = None
        self._padded: Estimator | None = None
        """Estimates the same jobs with padded rows."""

    def ranks(self, job: TrainingJob | InferenceJob, *, inventory: bool = False) -> Estimate:
        """Estimate every pipeline rank of the job, and return the estimate of the plan: that of its worst rank."""
        if isinstance(job, InferenceJob) and job.engine is not None:
            from memcheck.memory.engine import engine_estimate

            return engine_estimate(job, self._gpu, inventory=inventory)
        if isinstance(job, InferenceJob):
            from memcheck.memory.inference import inference_ranks

            ranks = inference_ranks(job, inventory=inventory)
        elif isinstance(job.architecture, Rough):
            from memcheck.memory.rough import rough_ranks

            ranks = rough_ranks(job)
        else:
            ranks = stack_of(job.framework).ranks(job, job.architecture, self._gpu.arch, inventory)
        return self._covering(job, self._answer(job, ranks, max(ranks, key=lambda r: r.peak.allocated_bytes)))

    def worst(self, job: TrainingJob | InferenceJob) -> Estimate:
        """Estimate the worst rank alone, at its highest instant; the figures equal those of :meth:`ranks`."""
        if isinstance(job, InferenceJob) or isinstance(job.architecture, Rough):
            return self.ranks(job)
        if self._worst is None:
            self._worst = stack_of(job.framework).worst_rank(job, job.architecture, self._gpu.arch)
        rank = self._worst.rank(job)
        return self._covering(job, self._answer(job, (rank,), rank))

    def _covering(self, job: TrainingJob | InferenceJob, answer: Estimate) -> Estimate:
        """Widen the intervals of an estimate to cover the job with padded rows as well, if its rows may be padded."""
        if isinstance(job, InferenceJob) or not job.may_pad:
            return answer
        padded = job._replace(sequences="padded", may_pad=False)
        if self._padded is None:
            self._padded = Estimator(padded, self._gpu, self._overhead)
        with_padding = self._padded.worst(padded)
        (low, high), (seen_low, seen_high) = answer.needed_interval_bytes, answer.interval_bytes
        return answer._replace(
            needed_interval_bytes=(low, max(high, with_padding.needed_interval_bytes[1])),
            interval_bytes=(seen_low, max(seen_high, with_padding.interval_bytes[1])),
            padded_bytes=with_padding.needed_bytes if with_padding.needed_bytes > answer.needed_bytes else 0,
        )

    def _answer(
        self, job: TrainingJob | InferenceJob, ranks: tuple[RankEstimate, ...], worst: RankEstimate
    ) -> Estimate:
        """Return the estimate of the plan, from the live tensors of its worst rank at each instant.

        Added are the caching allocator's fragmentation and cache, CUDA context and communicators, the intervals, and
        host memory.
        """
        gpu, overhead = self._gpu, self._overhead
        if self._surroundings is None or self._kinds is None:
            self._surroundings, self._kinds = surroundings(job, gpu), interval_kinds(job)
        peak = worst.peak
        allocated = peak.allocated_bytes
        extra = slack(job, gpu, overhead, allocated, self._surroundings, worst.pools)
        reserved = allocated + extra.fragmentation
        device = reserved + extra.context_and_nccl
        figures = PlanFigures(allocated, extra.outside, worst.pools)
        intervals = ends(residuals(), self._kinds, figures, gpu.memory_bytes)
        formulas = worst.formulas
        if formulas:
            from memcheck.memory.overhead_terms import formulas_of

            formulas += formulas_of(job, gpu, overhead, worst)
        counts = _counts(job)
        moments = self._host(job, ranks, extra.context_and_nccl)
        highest = max(moments, key=lambda m: m.bytes, default=None)
        return Estimate(
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            device_bytes=device,
            capacity_bytes=gpu.memory_bytes,
            interval_bytes=around(device, intervals.seen),
            needed_interval_bytes=around(device - extra.cache, intervals.needed),
            instant=peak.name,
            operation=peak.operation,
            pipeline_rank=worst.pipeline_rank,
            components_bytes=_with_slack(peak.components_bytes, extra),
            parameters=counts.total,
            trainable_parameters=counts.trained,
            host_bytes_per_node=highest.bytes if highest else 0,
            host_components=highest.components if highest else (),
            host_moments=moments,
            ranks=ranks,
            largest=worst.largest,
            formulas=formulas,
            cache_bytes=extra.cache,
        )

    def _host(
        self, job: TrainingJob | InferenceJob, ranks: tuple[RankEstimate, ...], outside: int
    ) -> tuple[HostMoment, ...]:
        """Predict the host memory of one node at each moment from loading to saving; empty for serving.

        ``outside``: bytes of a GPU outside the caching allocator. Results are kept in ``hosts``, except under a flat
        overhead, where ``outside`` changes with the batch.
        """
        if isinstance(job, InferenceJob):
            return ()
        offloaded = max([rank.host_bytes for rank in ranks]) * job.layout.gpus_per_node
        accumulates = job.gradient_accumulation_steps > 1  # with `offloaded`, all that host memory reads of the batch
        moments = self.hosts.get((accumulates, offloaded)) if self._overhead.kind != "flat" else None
        if moments is None:
            counts = _counts(job)
            room = self._gpu.memory_bytes - outside
            moments = host_moments(job, counts.total, counts.trained, offloaded, room)
            self.hosts[accumulates, offloaded] = moments
        return moments


def _with_slack(live: Mapping[str, int], extra: Slack) -> dict[str, int]:
    """Add what the allocator holds and what is outside it to the live bytes by component; leave out components of 0."""
    components = dict(live)
    components["fragmentation"] = components.get("fragmentation", 0) + extra.fragmentation
    components["context_and_nccl"] = components.get("context_and_nccl", 0) + extra.context_and_nccl
    return {name: n_bytes for name, n_bytes in components.items() if n_bytes}


def around(count: int, ends: tuple[int, int]) -> tuple[int, int]:
    """Widen an interval in bytes so that it includes ``count``, which a flat overhead may put outside it."""
    return min(count, ends[0]), max(count, ends[1])


class ModelCounts(Record):
    """Parameters of a whole model, adapters included."""

    total: int
    trained: int


def _counts(job: TrainingJob | InferenceJob) -> ModelCounts:
    """Count the parameters of the whole model.

    Counts are cached by the identity of the architecture, which takes longer to hash than to count.
    """
    if isinstance(job.architecture, Rough):
        parameters = job.architecture.parameters
        return ModelCounts(total=parameters, trained=0 if isinstance(job, InferenceJob) else parameters)
    architecture = job.architecture
    trained_by = None if isinstance(job, InferenceJob) else (job.framework, job.method, job.lora, job.freeze)
    entry = _counted.get((id(architecture), trained_by))
    if entry is None or entry[0] is not architecture:
        if len(_counted) >= COUNTED:
            _counted.clear()
        entry = _counted[id(architecture), trained_by] = (architecture, _count(job, architecture))
    return entry[1]


COUNTED = 256
_counted: dict[tuple[int, object], tuple[Architecture, ModelCounts]] = {}
"""By identity of the architecture, and by what decides which parameters are trained."""


def _count(job: TrainingJob | InferenceJob, architecture: Architecture) -> ModelCounts:
    """Count the parameters of the whole model and those that are trained, without the cache of :func:`_counts`."""
    total = count_parameters(architecture)
    if isinstance(job, InferenceJob):
        return ModelCounts(total=total, trained=0)
    if job.method == "full" and not job.freeze:
        return ModelCounts(total=total, trained=total)
    trained, adapters = stack_of(job.framework).trained_parameters(job, architecture)
    return ModelCounts(total=total + adapters, trained=trained)
