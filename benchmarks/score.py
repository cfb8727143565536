"""Price every case the way ``memcheck estimate`` does, from YAML text to an estimate."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from benchmarks.cases import HERE, Case
from memcheck.accounts.estimate import Estimate, Pools, RankEstimate
from memcheck.catalog.names import Gpu
from memcheck.errors import MemcheckError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import InferenceJob, Overhead, TrainingJob
from memcheck.memory.allocator import allocator_group, blocks_group, optimizer_group, remainder_group, residuals
from memcheck.memory.estimate import estimate
from memcheck.memory.interval import Intervals, PlanFigures, error_group
from memcheck.memory.overhead import OutsideBytes, slack
from memcheck.memory.overhead_terms import intervals
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture
from memcheck.plan.read import load_documents, read_plan


class Row(NamedTuple):
    """One case and its prediction."""

    case: Case
    predicted_bytes: int
    """Of the metric that was measured."""
    allocated_bytes: int
    pools: Pools
    reserved_bytes: int
    device_bytes: int
    needed_bytes: int
    outside: OutsideBytes
    intervals: Intervals
    capacity_bytes: int
    phase: str
    error_group: str
    allocator_group: str
    remainder_group: str
    blocks_group: str

    @property
    def held(self) -> PlanFigures:
        """The figures that the intervals lie around."""
        return PlanFigures(self.allocated_bytes, self.outside, self.pools)

    @property
    def held_group(self) -> str:
        """The kind under which a reading of reserved memory counts."""
        return optimizer_group(self.allocator_group) if self.pools.before else self.allocator_group

    @property
    def error(self) -> float:
        """Prediction over truth, minus one."""
        return self.predicted_bytes / self.case.truth_bytes - 1

    @property
    def ratio(self) -> float:
        """Truth over what is predicted to be live, on every stream at its highest."""
        return self.case.truth_bytes / (self.allocated_bytes + self.pools.apart)

    @property
    def unsafe(self) -> bool:
        """The truth is above what the interval allows: a plan might have been called safe and was not."""
        return self.case.truth_bytes > self.interval_bytes[1]

    @property
    def interval_bytes(self) -> tuple[int, int]:
        """The interval of what was measured.

        A reading of live tensors is held against the interval of ``needed`` without what is predicted on top of live
        tensors, a reading of reserved memory against that of *seen* without what is outside the allocator.
        """
        if self.case.metric != "allocated":
            return reserved_between(self.intervals.seen, self.capacity_bytes, self.outside)
        ends, on_top = self.intervals.needed, self.needed_bytes - self.allocated_bytes
        return max(0, ends[0] - on_top), ends[1] - on_top

    @property
    def width(self) -> float:
        """Of the interval of ``needed``, as a share of it."""
        return (self.intervals.needed[1] - self.intervals.needed[0]) / self.needed_bytes

    @property
    def width_in_one(self) -> float:
        """Of one interval for both figures, from live tensors to the most that is seen, as a share of what is seen."""
        return (self.intervals.seen[1] - min(self.allocated_bytes, self.intervals.needed[0])) / self.device_bytes

    @property
    def inside(self) -> bool:
        """The truth is within the interval."""
        return self.interval_bytes[0] <= self.case.truth_bytes <= self.interval_bytes[1]

    @property
    def phase_agrees(self) -> bool | None:
        """Same moment of the peak, where it is known."""
        return None if self.case.phase is None else self.phase == self.case.phase


def reserved_between(seen: tuple[int, int], capacity: int, outside: OutsideBytes) -> tuple[int, int]:
    """What of an interval of *seen* is reserved: on a full GPU all that is not outside of the allocator."""
    least = outside.ends(residuals())[0]
    return seen[0] - outside.total, max(seen[1] - outside.total, capacity - least if seen[1] >= capacity else 0)


class Failed(NamedTuple):
    """A case that memcheck did not price."""

    case: Case
    problem: str


def resolved(plan: dict[str, Any]) -> tuple[TrainingJob | InferenceJob, Gpu, Overhead]:
    """A plan's job, GPU and overhead policy, read from text as a file would be.

    Raises:
        MemcheckError: the plan cannot be read or resolved.
    """
    (document,) = load_documents("benchmark.yaml", json.dumps(plan).encode())
    typed, findings = read_plan(document)
    errors = [f"{f.code} {f.message}" for f in findings if f.severity == "error"]
    if typed is None or errors:
        raise MemcheckError("; ".join(errors) or "the plan was not read")
    found = resolve(typed, FRAMEWORKS, base_dir=HERE)
    return found.job, found.gpu, found.overhead


def answer(plan: dict[str, Any]) -> Estimate:
    """The estimate of one plan."""
    return estimate(*resolved({"memcheck": 1, **plan}))


def as_traced(case: Case, job: TrainingJob | InferenceJob) -> TrainingJob | InferenceJob:
    """The job with its embedding untied if both matrices were traced as parameters."""
    architecture = job.architecture
    if case.parameters is None or not isinstance(architecture, Architecture):
        return job
    untied = architecture._replace(tie_word_embeddings=False)
    if architecture.tie_word_embeddings and case.parameters == count_parameters(untied):
        return job._replace(architecture=untied)
    return job


def score(case: Case) -> Row | Failed:
    """One case."""
    try:
        job, gpu, overhead = resolved(case.plan)
        job = as_traced(case, job)
        rank = rank_of(case, estimate(job, gpu, overhead))
    except MemcheckError as error:
        return Failed(case, str(error) or type(error).__name__)
    return priced(case, job, gpu, rank)


def rank_of(case: Case, found: Estimate) -> RankEstimate:
    """The rank that a case is about: the fullest, or the one that was traced."""
    if case.pipeline_rank is None:
        return max(found.ranks, key=lambda r: r.peak.allocated_bytes)
    return next(r for r in found.ranks if r.pipeline_rank == case.pipeline_rank)


def priced(case: Case, job: TrainingJob | InferenceJob, gpu: Gpu, rank: RankEstimate) -> Row:
    """The row of one rank."""
    allocated = rank.peak.allocated_bytes
    extra = slack(job, gpu, Overhead(), allocated, pools=rank.pools)
    reserved = allocated + extra.fragmentation
    device = reserved + extra.context_and_nccl
    held = PlanFigures(allocated, extra.outside, rank.pools)
    return Row(
        case,
        allocated if case.metric == "allocated" else reserved,
        allocated,
        rank.pools,
        reserved,
        device,
        device - extra.cache,
        extra.outside,
        intervals(job, held, gpu.memory_bytes),
        gpu.memory_bytes,
        rank.peak.name,
        error_group(job),
        allocator_group(job),
        remainder_group(job),
        blocks_group(job),
    )
