"""A pipeline rank's step on top of nothing, and what it is made from."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memcheck.accounts.moves import Components, Held, Moment, Rest, one_held
from memcheck.accounts.state import LocalTensor
from memcheck.accounts.timeline import Timeline
from memcheck.accounts.unit import Part
from memcheck.frameworks.torch.fsdp import Group, group, reduces_head, wraps
from memcheck.frameworks.torch.pipelining import in_flight, most_in_flight, parts
from memcheck.job.types import Checkpoint, Initialization, Layout, Optimizer, TrainingJob
from memcheck.memory.beside import Always, Beside
from memcheck.memory.conduct import NO_GROUPS, Beyond, Conduct, Groups, beyond, conduct
from memcheck.memory.resting import ways_of
from memcheck.memory.rests import engine_walk, rests, timeless
from memcheck.memory.runs import Run, Units, accumulation, units_of
from memcheck.memory.step import Step
from memcheck.models.types import Architecture
from memcheck.record import Record

if TYPE_CHECKING:
    from memcheck.memory.open_walk import OpenGroups, OpenMotion, OpenRuns, OpenStep

MICRO_BATCHES = 3
"""Without a pipeline, those behind the second and before the last repeat the second."""


def stateless(job: TrainingJob, torch: str) -> TrainingJob:
    """The job under one behaviour of PyTorch, without what only decides what rests: its walk can be kept for all such.

    A step moves what its units compute and what its parameter groups gather and reduce. Of the optimizer it reads
    nothing; of the data-parallel ranks, whether there are several, and where parameters or gradients are divided, over
    how many. Micro-batches beyond those that a rank can have in flight repeat the ones before; a GPipe rank has all.
    """
    layout = job.layout
    data = min(layout.data, 2)
    stage, group_size, optimizer = layout.zero_stage, layout.shard_group, job.optimizer
    if job.framework != "deepspeed":
        optimizer = NO_OPTIMIZER
        if stage < 2:
            stage, group_size = 0, 1
    return job._replace(
        optimizer=optimizer,
        gradient_accumulation_steps=settled(job),
        initialization=NO_INITIALIZATION,
        checkpoint=NO_CHECKPOINT,
        layout=layout._replace(nodes=1, gpus_per_node=1, data=data, zero_stage=stage, shard_group=group_size),
        torch=(torch,),
    )


def settled(job: TrainingJob) -> int:
    """Micro-batches that a :func:`stateless` job has of this one's."""
    layout, steps = job.layout, job.gradient_accumulation_steps
    if layout.pipeline == 1:
        return min(steps, MICRO_BATCHES)
    return steps if layout.pipeline_schedule == "gpipe" else min(steps, most_in_flight(layout) + MICRO_BATCHES - 1)


NO_INITIALIZATION, NO_CHECKPOINT = Initialization(), Checkpoint()
NO_OPTIMIZER = Optimizer("", "")


class Motion(Record):
    """A rank's step on top of nothing."""

    tops: tuple[tuple[str, int], ...]
    """Each instant and its bytes."""
    walked: tuple[Moment, ...] | OpenMotion
    held: Held
    always: tuple[Always, ...]
    parameters: int
    host_bytes: int

    def moment(self, index: int) -> Moment:
        """One instant with its components."""
        return self.walked[index] if isinstance(self.walked, tuple) else self.walked.moment(index)

    def moments(self) -> tuple[Moment, ...]:
        """Each instant with its components."""
        return tuple([self.moment(index) for index in range(len(self.tops))])

    def beside(self, micro_batches: int) -> Components:
        """What lives all step beside the states."""
        return tuple([(a.component, a.bytes + a.each * micro_batches) for a in self.always])


@lru_cache(maxsize=512)
def closed_motion(job: TrainingJob, architecture: Architecture, rank: int) -> Motion:
    """The step of a rank of a :func:`stateless` job, walked with its sizes."""
    found = rank_step(job, architecture, rank, job_units(job, architecture))
    moments = found.walk().moments()
    tops = tuple([(moment.name, moment.bytes) for moment in moments])
    return Motion(tops, moments, found.units.held, tuple(found.beside.always()), *found.counts())


def open_motion(ranks: OpenRanks, states: States, rank: int) -> Motion:
    """The same, as the sizes say of a walk that is kept for all sizes: faster for the second one on."""
    found = ranks.step(rank)
    walked = found.alone
    if walked is None:
        walked = found.step.motion(states.groups(found.held, found.reduced))
    return Motion(walked.tops, walked, found.held, found.always, found.parameters, found.host_bytes)


class States:
    """What follows from the states of a :func:`memcheck.memory.rests.timeless` job alone."""

    __slots__ = ("_groups", "_job", "_rests")

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._rests: dict[Held, Rest] = {}
        self._groups: dict[tuple[Held, tuple[str, ...]], OpenGroups] = {}

    def rest(self, held: Held) -> Rest:
        """The states of a rank."""
        found = self._rests.get(held)
        if found is None:
            found = self._rests[held] = rests(self._job, held)
        return found

    def groups(self, held: Held, reduced: tuple[str, ...]) -> OpenGroups:
        """FSDP2's groups of a rank."""
        found = self._groups.get((held, reduced))
        if found is None:
            from memcheck.memory.open_walk import open_groups

            found = self._groups[held, reduced] = open_groups(_groups(self._job, held, reduced))
        return found


@lru_cache(maxsize=1024)
def states_of(job: TrainingJob) -> States:
    """Kept, of a :func:`memcheck.memory.rests.timeless` job."""
    return States(job)


class OpenRanks:
    """The steps of a job's ranks with the sizes of their units, open to those of FSDP2's groups."""

    __slots__ = ("_architecture", "_job", "_steps", "_units")

    def __init__(self, job: TrainingJob, architecture: Architecture) -> None:
        self._job, self._architecture = job, architecture
        self._units = job_units(job, architecture)
        self._steps: dict[int, _OpenStep] = {}

    def step(self, rank: int) -> _OpenStep:
        """That of one rank."""
        known = self._steps.get(rank)
        if known is None:
            known = self._steps[rank] = self._step(rank)
        return known

    def _step(self, rank: int) -> _OpenStep:
        from memcheck.memory.open_walk import NO_SIZES, OpenStep

        part = parts(self._architecture.num_layers, self._job.layout.pipeline)[rank]
        found = rank_step(self._job, self._architecture, rank, self._units, grouped=False)
        step = OpenStep(found.how, _open_runs(self._units, part), found.beyond())
        alone = None if found.how.sharded else step.motion(NO_SIZES)
        held, reduced = found.units.held, found.units.reduced
        return _OpenStep(step, alone, held, reduced, tuple(found.beside.always()), *found.counts())


def undivided(job: TrainingJob) -> TrainingJob:
    """A :func:`stateless` job without what is seen by FSDP2's groups alone: over how many ranks these are divided."""
    if not wraps(job) or reduces_head(job):
        return job
    return job._replace(layout=job.layout._replace(shard_group=min(job.layout.shard_group, 2)))


class _OpenStep(Record):
    """What is kept for all sizes of FSDP2's groups."""

    step: OpenStep
    alone: OpenMotion | None
    """The whole of it, where there are none."""
    held: Held
    reduced: tuple[str, ...]
    always: tuple[Always, ...]
    parameters: int
    host_bytes: int


class RankUnits(Record):
    """What a rank runs, and the tensors of it."""

    runs: list[Run]
    held: Held
    reduced: tuple[str, ...]
    """Of each run, a tensor whose gradient the loss reduces."""
    parameters: int
    offloaded: int
    """Bytes that a micro-batch sends to the host."""


class RankStep(Record):
    """All that a rank's step is walked from."""

    job: TrainingJob
    rank: int
    units: RankUnits
    how: Conduct
    others: tuple[float, ...]
    """Of each walk, the other micro-batches in flight."""
    groups: tuple[Groups, ...]
    beside: Beside

    def beyond(self) -> Beyond:
        """The sizes beside its units."""
        return beyond(self.job, self.units.runs, self.beside, self.others)

    def walk(self, rests: Components = (), optimizer: str = "optimizer step", temporaries: int = 0) -> Timeline:
        """The account of the step with its sizes."""
        timeline = Timeline()
        engine = engine_walk(self.job, self.units.held, timeline)
        step = Step(self.how, self.units.runs, self.groups, self.beyond(), timeline, engine)
        return step.run(rests, optimizer, temporaries)

    def counts(self) -> tuple[int, int]:
        """Parameters of the rank, and what its micro-batches in flight keep in host memory."""
        if not self.units.offloaded:
            return self.units.parameters, 0
        steps = self.job.gradient_accumulation_steps
        return self.units.parameters, int(self.units.offloaded * in_flight(self.rank, self.job.layout, steps))


def rank_step(
    job: TrainingJob, architecture: Architecture, rank: int, kept: Units, *, grouped: bool = True
) -> RankStep:
    """What pipeline rank ``rank`` walks through; FSDP2's groups only if it is to be ``grouped``.

    ``kept``: :func:`job_units` of the job.
    """
    part = parts(architecture.num_layers, job.layout.pipeline)[rank]
    units = _rank_units(kept, part)
    beside = Beside(job, architecture, part, kept.base)
    how, others = conduct(job, rank, beside.border)
    groups: tuple[Groups, ...] = (NO_GROUPS,) * len(units.runs)
    if how.sharded and grouped:
        groups = _groups(timeless(job), units.held, units.reduced)
    return RankStep(job, rank, units, how, others, groups, beside)


def job_units(job: TrainingJob, architecture: Architecture, inventory: bool = False) -> Units:
    """What makes the units of the job's ranks."""
    return units_of(_unit_job(job), architecture, accumulation(job), inventory)


def _unit_job(job: TrainingJob) -> TrainingJob:
    """The job without what its units do not depend on, :class:`Accumulation` aside."""
    layout = job.layout
    alone = Layout(
        tensor=layout.tensor,
        sequence=layout.sequence,
        context=layout.context,
        expert=layout.expert,
        expert_tensor=layout.expert_tensor,
    )
    if reduces_head(job):
        alone = alone._replace(zero_stage=layout.zero_stage, shard_group=layout.shard_group)
    return job._replace(
        layout=alone,
        optimizer=NO_OPTIMIZER,
        gradient_accumulation_steps=1,
        parameter_offload="none",
        initialization=NO_INITIALIZATION,
        checkpoint=NO_CHECKPOINT,
        torch=(),
    )


@lru_cache(maxsize=2048)
def _rank_units(units: Units, part: Part) -> RankUnits:
    runs = units.runs(part)
    held = one_held([(run.unit.tensors, run.times) for run in runs])
    same: list[Run] = []
    parameters = offloaded = 0
    tensors: Any  # equal ones are one object in what is held, by which groups are told apart
    for run, (tensors, _) in zip(runs, held.runs, strict=True):
        unit = run.unit if run.unit.tensors is tensors else run.unit._replace(tensors=tensors)
        same.append(run if unit is run.unit else run._replace(unit=unit))
        parameters += run.times * sum(t.numel for t in tensors)
        offloaded += run.times * unit.offloaded
    return RankUnits(same, held, tuple([run.unit.reduced for run in runs]), parameters, offloaded)


@lru_cache(maxsize=2048)
def _open_runs(units: Units, part: Part) -> OpenRuns:
    from memcheck.memory.open_walk import open_runs

    return open_runs(_rank_units(units, part).runs, part.first)


def _groups(job: TrainingJob, held: Held, reduced: tuple[str, ...]) -> tuple[Groups, ...]:
    """FSDP2's groups, run by run. ``reduced``: of each, the tensor whose gradient the loss reduces."""
    known: dict[int, Groups] = {}
    found = []
    tensors: Any
    for early, (tensors, _) in zip(reduced, held.runs, strict=True):
        if id(tensors) not in known or early:
            whole = Groups(group_of(job, tensors))
            if early:
                both = ([t for t in tensors if t.name == early], [t for t in tensors if t.name != early])
                whole = Groups(whole.whole, *(group_of(job, tuple(part)) for part in both))
            known[id(tensors)] = whole
        found.append(known[id(tensors)])
    return tuple(found)


def group_of(job: TrainingJob, tensors: tuple[LocalTensor, ...]) -> Group:
    """The group that FSDP2 makes of a unit's tensors."""
    ways = job.layout.shard_group
    divided = [(t, ways_of(job, t, ways)) for t in tensors]
    return group(divided, job.recipe.compute, job.recipe.reduce, job.recipe.params)
