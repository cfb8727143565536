"""All pipeline ranks of a training job, or the worst of them alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from memcheck.accounts.estimate import Instant, Pools, RankEstimate
from memcheck.accounts.moves import Components, ResidentStates, ResidentTensors, highest, peak_on, with_resident
from memcheck.frameworks.torch.fsdp import mixes_adapters, runs_chunks
from memcheck.frameworks.torch.pipelining import SPLIT, fullest, parts
from memcheck.frameworks.torch.rank_steps import (
    RankPeak,
    States,
    Steps,
    settled,
    states_of,
    step_key,
    unsharded_step_key,
)
from memcheck.frameworks.torch.states import engine_of
from memcheck.job.any_batch import AnyBatch, any_batch
from memcheck.job.reduced import state_key
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record
from memcheck.remembered import lru_cache


def training_ranks(
    job: TrainingJob, architecture: Architecture, *, inventory: bool = False
) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank. ``inventory``: with its largest tensors and its formulas."""
    return remembered_ranks(job if inventory else _shortened(job), architecture, inventory)


def _shortened(job: TrainingJob) -> TrainingJob:
    """The job without micro-batches that repeat others, if it has no pipeline."""
    return job if job.layout.pipeline > 1 else job._replace(gradient_accumulation_steps=settled(job))


@lru_cache(maxsize=512)
def remembered_ranks(job: TrainingJob, architecture: Architecture, inventory: bool) -> tuple[RankEstimate, ...]:
    """The ranks of equal jobs: what differs between the plans of one repository often does not matter here."""
    _require_modelled(job, architecture)
    numbers = tuple(range(job.layout.pipeline))
    states = states_of(state_key(job))
    if not inventory:
        return tuple([laid(job, rank) for rank in peak_ranks(job, states, Behaviours(job, architecture), numbers)])
    from memcheck.frameworks.torch.inventory import with_inventory

    each = [Steps(unsharded_step_key(step_key(job, torch)), architecture, inventory=True) for torch in job.torch]
    found = [peak_rank(job, states, number, [steps.peak(number, states) for steps in each]) for number in numbers]
    return tuple([with_inventory(job, laid(job, rank), rank.motion) for rank in found])


def _require_modelled(job: TrainingJob, architecture: Architecture) -> None:
    shares = any(block.borrows for block, _ in architecture.blocks)
    if shares or job.layout.pipeline_schedule in SPLIT or mixes_adapters(job):
        from memcheck.frameworks.torch.fsdp_limits import require_modelled

        require_modelled(job, architecture)


class Behaviours:
    """The steps of jobs that differ in their batch alone, under every behaviour of PyTorch that the job may meet."""

    __slots__ = ("_any_batch", "_architecture")

    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        """``job``: any of the jobs, which differ in their batch alone."""
        _require_modelled(job, architecture)
        self._architecture = architecture
        self._any_batch: dict[str, AnyBatch] = {}
        for torch in job.torch:
            self._find(job, torch)

    def steps(self, job: TrainingJob, torch: str) -> Steps:
        """The steps of a job with its batch. The batch decides under how many behaviours of PyTorch it is estimated."""
        found = self._any_batch.get(torch) or self._find(job, torch)
        return _steps(found, job.micro_batch_size, job.sequence_length, settled(job))

    def _find(self, job: TrainingJob, torch: str) -> AnyBatch:
        found = self._any_batch[torch] = any_batch(unsharded_step_key(step_key(job, torch)), self._architecture)
        return found


@lru_cache(maxsize=2048)
def _steps(job: AnyBatch, micro_batch_size: int, sequence_length: int, micro_batches: int) -> Steps:
    return Steps(job.of(micro_batch_size, sequence_length, micro_batches), job.architecture)


def peak_ranks(job: TrainingJob, states: States, behaviours: Behaviours, numbers: tuple[int, ...]) -> list[RankAtPeak]:
    """Some ranks, each under the behaviour of PyTorch that needs most."""
    each = [behaviours.steps(job, torch) for torch in job.torch]
    return [peak_rank(job, states, number, [steps.peak(number, states) for steps in each]) for number in numbers]


class RankAtPeak(Record):
    """A rank under the behaviour of PyTorch that needs most, the first of equal ones."""

    number: int
    peak: int
    rest: ResidentStates
    beside: Components
    motion: RankPeak


def peak_rank(job: TrainingJob, states: States, number: int, motions: list[RankPeak]) -> RankAtPeak:
    """``motions``: the rank's step under every behaviour."""
    steps = job.run_micro_batches
    best: RankAtPeak | None = None
    for found in motions:
        rest, beside = states.resident(found.units.held), found.beside(steps)
        peak = highest(rest, found.tops, beside)
        if best is None or peak > best.peak:
            best = RankAtPeak(number, peak, rest, beside, found)
    assert best is not None  # noqa: S101 - every job has a version
    return best


def laid(job: TrainingJob, rank: RankAtPeak) -> RankEstimate:
    """The rank's step on top of the resident bytes, with the instants before and after it."""
    found = rank.motion
    instants = _with_around(job, found.units.held, with_resident(rank.rest, found.moments(), rank.beside))
    return _estimated(job, rank, instants, found.host_bytes, [(i.name, i.allocated_bytes) for i in instants])


def _estimated(
    job: TrainingJob, rank: RankAtPeak, instants: tuple[Instant, ...], host_bytes: int, tops: Sequence[tuple[str, int]]
) -> RankEstimate:
    """``tops``: every instant and its bytes, of which ``instants`` has one or all."""
    peak = max([instant.allocated_bytes for instant in instants])
    quiet = ("load", "save", "optimizer") if _makes_lists(job) else ("load", "save")
    before = max([count for name, count in tops if name not in quiet])
    lists = max([count for name, count in tops if name in quiet], default=0)
    first, others = of_streams(rank)
    held = rank.motion.units.held
    engine = engine_of(job, held.units, recomputes=job.checkpointing.mode == "full")  # type: ignore[arg-type]
    others = others if engine is None else engine.beside
    pools = Pools(
        largest=rank.motion.step.largest_block,
        apart=max(0, first + others - peak) + rank.rest.paged,
        others=others,
        before=before if lists > before else 0,
        lists=lists,
    )
    left = rank.rest.unfilled
    if left is not None:
        freed = before - sum([count for _, count in rank.rest.components])
        pools = pools._replace(unfilled=left.among(freed), unfilled_most=left.most)
    if pools.before and max(tops, key=lambda top: top[1])[0] != "optimizer":
        from memcheck.frameworks.torch.load_and_save import unfilled_whole

        most = max(pools.unfilled_most, unfilled_whole(state_key(job), held))
        pools = pools._replace(unfilled_most=most)
    return RankEstimate(rank.number, instants, rank.motion.units.parameters, host_bytes=host_bytes, pools=pools)


def _makes_lists(job: TrainingJob) -> bool:
    """Torch's optimizer with a temporary for each parameter, and no stage whose peak is another moment."""
    foreach = job.optimizer.implementation == "foreach" and not job.framework.own_engine
    return foreach and job.layout.pipeline == 1


def of_streams(rank: RankAtPeak) -> tuple[int, int]:
    """Bytes of the default stream's highest point, and of all others' together; zeros where a step has one stream."""
    tops = rank.motion.step.stream_tops()
    if not tops:
        return 0, 0
    return highest(rank.rest, tops[0], rank.beside), sum([max([count for _, count in some]) for some in tops[1:]])


def is_fixed_by_step(job: TrainingJob) -> bool:
    """Whether no moment before or after the step may exceed it."""
    return job.initialization.place != "device" and job.checkpoint.offload != "none" and job.evaluation is None


def _with_around(job: TrainingJob, held: ResidentTensors, instants: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """The instants of a step, with those before and after it that may exceed it."""
    if is_fixed_by_step(job):
        return instants
    from memcheck.frameworks.torch.load_and_save import around

    return around(job, held, instants)


class Worst:
    """Finds the worst rank of jobs that differ in their batch alone."""

    __slots__ = ("_behaviours", "_numbers", "_states")

    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        """``job``: any of the jobs, which differ in their batch alone."""
        self._numbers = tuple(fullest(job, _contents(architecture, job.layout, chunked=runs_chunks(job))))
        self._behaviours = Behaviours(job, architecture)
        self._states: dict[bool, States] = {}

    def rank(self, job: TrainingJob) -> RankEstimate:
        """The rank with the highest peak, the first of equal ones, with that instant alone."""
        found = peak_ranks(job, self._states_of(job), self._behaviours, self._numbers)
        host_bytes = max([rank.motion.host_bytes for rank in found])
        if is_fixed_by_step(job):
            worst = max(found, key=lambda rank: rank.peak) if len(found) > 1 else found[0]
            return _at_peak(job, worst, host_bytes)
        every = max([laid(job, rank) for rank in found], key=lambda rank: rank.peak.allocated_bytes)
        return every._replace(instants=(every.peak,), host_bytes=host_bytes)

    def _states_of(self, job: TrainingJob) -> States:
        several = job.gradient_accumulation_steps > 1  # all that states depend on of a batch
        known = self._states.get(several)
        if known is None:
            known = self._states[several] = states_of(state_key(job))
        return known


def _at_peak(job: TrainingJob, rank: RankAtPeak, host_bytes: int) -> RankEstimate:
    """The rank with its highest instant alone."""
    found = rank.motion
    instants = with_resident(rank.rest, (found.step.moment(peak_on(rank.rest, found.tops)),), rank.beside)
    tops = [(name, highest(rank.rest, ((name, count),), rank.beside)) for name, count in found.tops]
    return _estimated(job, rank, instants, host_bytes, tops)


@lru_cache(maxsize=256)
def _contents(architecture: Architecture, layout: Layout, *, chunked: bool) -> tuple[Hashable, ...]:
    """What tells pipeline ranks apart, in addition to the micro-batches that they hold."""
    layers, ways = tuple(map(id, architecture.layers())), layout.pipeline
    each = parts(architecture.num_layers, ways * (layout.virtual_stages if chunked else 1), layout.fewer_layers)
    found = [(p.embedding, p.head, p.first > 0, layers[p.first : p.last]) for p in each]
    if not chunked:
        return tuple(found)
    from memcheck.frameworks.torch.interleaved import stages_of

    return tuple(tuple(found[stage] for stage in stages_of(layout, rank)) for rank in range(ways))
