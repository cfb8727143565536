"""All pipeline ranks of a training job."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from memcheck.architecture.types import Architecture
from memcheck.job.types import Checkpoint, Initialization, Optimizer, TrainingJob
from memcheck.memory.beside import Always, Beside
from memcheck.memory.fsdp import Group, wraps
from memcheck.memory.ledger.curve import High
from memcheck.memory.moves import Components, Held, Moment, Rest, highest, laid_on, one_held
from memcheck.memory.open_timeline import DIGIT, closed
from memcheck.memory.pipeline import fullest, in_flight, most_in_flight, parts
from memcheck.memory.resting import resting_dtype, shard_of, states_dtype
from memcheck.memory.rests import rests, timeless
from memcheck.memory.state import optimizer_state_bytes, weight_bytes
from memcheck.memory.step import Step, group_of
from memcheck.memory.types import Instant, RankEstimate, TensorGroup
from memcheck.memory.units import Part, Unit, part_units
from memcheck.record import Record

STEP = ("init", "forward", "loss", "backward", "optimizer")
"""Instants that the walk of a step has."""
MICRO_BATCHES = 3
"""Without a pipeline, those behind the second and before the last repeat the second."""


def training_ranks(
    job: TrainingJob, architecture: Architecture, *, inventory: bool = False, every_rank: bool = True
) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank, or per rank that may be the worst."""
    if job.layout.pipeline == 1 and job.gradient_accumulation_steps > MICRO_BATCHES and not inventory:
        job = job._replace(gradient_accumulation_steps=MICRO_BATCHES)
    return remembered_ranks(job, architecture, inventory, every_rank or job.layout.pipeline == 1)


@lru_cache(maxsize=512)
def remembered_ranks(
    job: TrainingJob, architecture: Architecture, inventory: bool, every_rank: bool = True
) -> tuple[RankEstimate, ...]:
    """The same, kept: what differs between the plans of one repository often does not matter here."""
    each = [job._replace(torch=(torch,)) for torch in job.torch]
    ranks = range(job.layout.pipeline) if every_rank else _fullest(stateless(each[0]), architecture)
    if not inventory:
        reduced = [reduced_job(stateless(one)) for one in each]
        still = timeless(job)
        return tuple(_rank(job, still, reduced, architecture, rank) for rank in ranks)
    found = []
    for rank in ranks:
        detailed = (_with_inventory(one, architecture, rank) for one in each)
        found.append(max(detailed, key=lambda estimate: estimate.peak.allocated_bytes))
    return tuple(found)


def stateless(job: TrainingJob) -> TrainingJob:
    """The job without what only decides what rests: a walk of its step can be kept for every such job.

    A step moves what its units compute and what its parameter groups gather and reduce. Of the optimizer it reads
    nothing; of the data-parallel ranks, whether there are several, and where parameters or gradients are divided, over
    how many. Micro-batches beyond those that a rank can have in flight repeat the ones before; a GPipe rank has all.
    """
    layout = job.layout
    data, steps = min(layout.data, 2), job.gradient_accumulation_steps
    layout = layout._replace(nodes=1, gpus_per_node=1, data=data)
    if job.framework != "deepspeed":
        job = job._replace(optimizer=NO_OPTIMIZER)
        if layout.zero_stage < 2:
            layout = layout._replace(zero_stage=0, shard_group=1)
    if layout.pipeline > 1 and layout.pipeline_schedule != "gpipe":
        steps = min(steps, most_in_flight(layout) + MICRO_BATCHES - 1)
    job = job._replace(initialization=Initialization(), checkpoint=Checkpoint())
    return job._replace(layout=layout, gradient_accumulation_steps=steps)


NO_OPTIMIZER = Optimizer("", "")


@lru_cache(maxsize=512)
def _fullest(job: TrainingJob, architecture: Architecture) -> tuple[int, ...]:
    return tuple(fullest(job, [_content(architecture, part) for part in parts(architecture.num_layers, job.layout)]))


def _content(architecture: Architecture, part: Part) -> Hashable:
    """What tells pipeline ranks apart, beside the micro-batches that they hold."""
    blocks = tuple(map(id, architecture.layers()[part.first : part.last]))
    return part.embedding, part.head, part.first > 0, blocks


class Reduced(Record):
    """A job without what rests, and with its parameters divided or not."""

    job: TrainingJob
    """Of FSDP2's groups, if shards are left open, it does not know over how many ranks they are divided."""
    shards_open: bool


def reduced_job(job: TrainingJob) -> Reduced:
    """The form in which a walk is kept."""
    shards_open = leaves_shards_open(job)
    return Reduced(undivided(job) if shards_open else job, shards_open)


def _rank(
    job: TrainingJob, still: TrainingJob, each: list[Reduced], architecture: Architecture, rank: int
) -> RankEstimate:
    """The rank under the behaviour of PyTorch that needs most, the first of equal ones. ``still``: without its step."""
    best: tuple[int, Rest, Components, Motion] | None = None
    for reduced in each:
        motion = _motion(still, reduced, architecture, rank)
        rest = rests(still, motion.held)
        beside = motion.beside(job.gradient_accumulation_steps)
        peak = highest(rest, motion.moments, beside)
        if best is None or peak > best[0]:
            best = (peak, rest, beside, motion)
    assert best is not None  # noqa: S101 - every job has a version
    _, rest, beside, motion = best
    instants = _with_around(job, motion.held, laid_on(rest, motion.moments, beside))
    return RankEstimate(rank, instants, motion.parameters, host_bytes=motion.host_bytes)


def _with_around(job: TrainingJob, held: Held, instants: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """The instants of a step, with those before and behind it that may exceed it."""
    if job.initialization.place != "device" and job.checkpoint.offload != "none":
        return instants
    from memcheck.memory.around import around

    return around(job, held, instants)


class Motion(Record):
    """A rank's step on top of nothing."""

    moments: tuple[Moment, ...]
    held: Held
    always: tuple[Always, ...]
    parameters: int
    host_bytes: int

    def beside(self, micro_batches: int) -> Components:
        """What lives all step beside the states."""
        return tuple((a.component, a.bytes + a.each * micro_batches) for a in self.always)


def _motion(still: TrainingJob, reduced: Reduced, architecture: Architecture, rank: int) -> Motion:
    """The walk of a rank, with the sizes of its shards."""
    if not reduced.shards_open:
        return remembered_motion(reduced.job, architecture, rank)
    groups, sizes = _groups(still, _rank_units(reduced.job, architecture, rank).held)
    motion = remembered_motion(reduced.job, architecture, rank, groups)
    return motion._replace(moments=closed(motion.moments, sizes))


def leaves_shards_open(job: TrainingJob) -> bool:
    """Whether a walk of the job's step can be kept for every number of ranks that share its parameters.

    FSDP2 reads that number when it cuts the tensors of a group, and nowhere else; but torchtitan's chunked loss reduces
    the head's gradient itself.
    """
    return wraps(job) and not (job.framework == "torchtitan" and job.loss.kind == "chunked")


def undivided(job: TrainingJob) -> TrainingJob:
    """The job without the number of ranks that share its parameters, beside whether there are several."""
    return job._replace(layout=job.layout._replace(shard_group=min(job.layout.shard_group, 2)))


class RankUnits(Record):
    """What a rank runs, and the tensors of it."""

    units: list[Unit]
    held: Held


@lru_cache(maxsize=2048)
def _rank_units(job: TrainingJob, architecture: Architecture, rank: int) -> RankUnits:
    units = part_units(job, architecture, parts(architecture.num_layers, job.layout)[rank])
    held = one_held([unit.tensors for unit in units])
    tensors: Any = held.units  # equal ones are one object there, by which groups are told apart
    pairs = zip(units, tensors, strict=True)
    return RankUnits([u if u.tensors is own else u._replace(tensors=own) for u, own in pairs], held)


@lru_cache(maxsize=4096)
def _groups(job: TrainingJob, held: Held) -> tuple[tuple[Group, ...], tuple[int, ...]]:
    """FSDP2's groups of a rank's distinct units with their shards left open, and the sizes of these."""
    distinct: dict[int, Any] = {id(tensors): tensors for tensors in held.units}
    found = [group_of(job, tensors) for tensors in distinct.values()]
    left_open: list[Group] = []
    sizes: list[int] = []
    for g in found:
        output = sharded = 1 << DIGIT * len(sizes) if g.reduce_output else 0
        sizes.append(g.reduce_output)
        if g.sharded != g.reduce_output:
            sharded = 1 << DIGIT * len(sizes)
            sizes.append(g.sharded)
        left_open.append(g._replace(reduce_output=output, sharded=sharded))
    return tuple(left_open), tuple(sizes)


@lru_cache(maxsize=4096)
def remembered_motion(
    job: TrainingJob, architecture: Architecture, rank: int, groups: tuple[Group, ...] | None = None
) -> Motion:
    """The walk of a rank, made from these alone: a reduced job, and FSDP2's groups where their shards are left open."""
    units, held = _rank_units(job, architecture, rank)
    step, beside = _step(job, architecture, parts(architecture.num_layers, job.layout)[rank], rank, units, groups)
    parameters = sum(count * sum(t.numel for t in unit.tensors) for unit, count in step.distinct)
    return Motion(
        step.run().moments(),
        held,
        tuple(beside.always()),
        parameters,
        _host_bytes(job, rank, units),
    )


def _step(
    job: TrainingJob,
    architecture: Architecture,
    part: Part,
    rank: int,
    units: list[Unit],
    groups: tuple[Group, ...] | None = None,
) -> tuple[Step, Beside]:
    micro_batches = job.gradient_accumulation_steps
    beside = Beside(job, architecture, part)
    step = Step(
        job,
        units,
        micro_batches=micro_batches,
        in_flight=in_flight(rank, job.layout, micro_batches),
        per_micro_batch=beside.rotary_tables() + beside.masks() + beside.received_input(),
        border=beside.border(),
        groups=groups,
    )
    return step, beside


def _host_bytes(job: TrainingJob, rank: int, units: list[Unit]) -> int:
    return int(sum(u.offloaded for u in units) * in_flight(rank, job.layout, job.gradient_accumulation_steps))


def _with_inventory(job: TrainingJob, architecture: Architecture, rank: int) -> RankEstimate:
    """A rank with its largest tensors and its formulas, walked on top of its states."""
    from memcheck.memory.formulas import training_formulas

    part = parts(architecture.num_layers, job.layout)[rank]
    units = part_units(job, architecture, part, inventory=True)
    step, beside = _step(job, architecture, part, rank, units)
    held = one_held([unit.tensors for unit in units])
    rest = rests(timeless(job), held)
    always = tuple((a.component, a.bytes + a.each * job.gradient_accumulation_steps) for a in beside.always())
    timeline = step.run((*rest.components, *always), rest.temporaries)
    instants = _with_around(job, held, timeline.instants())
    peak = max(instants, key=lambda i: i.allocated_bytes)
    parameters = sum(count * sum(t.numel for t in unit.tensors) for unit, count in step.distinct)
    high = timeline.unit_high(peak.name) if peak.name in STEP else None
    formulas = training_formulas(job, units, peak, high, beside.setting.style)
    largest = largest_tensors(job, units, peak, high)
    return RankEstimate(rank, instants, parameters, largest, formulas, _host_bytes(job, rank, units))


def largest_tensors(
    job: TrainingJob, units: list[Unit], peak: Instant, high: High | None, top: int = 12
) -> tuple[TensorGroup, ...]:
    """The largest groups of equal live tensors at a rank's peak."""
    groups: dict[tuple[str, str, str], list[int]] = {}

    def put(label: str, shape: tuple[int, ...], dtype: str, n_bytes: int, component: str) -> None:
        key = (label, f"[{', '.join(map(str, shape))}] {dtype}", component)
        g = groups.setdefault(key, [0, 0])
        g[0] += 1
        g[1] += n_bytes

    from memcheck.memory.around import sharding_at

    cut = sharding_at(job, peak.name)
    held = peak.components_bytes.get("optimizer_states")
    for unit in units:
        for t in unit.tensors:
            shape = f"[{', '.join(map(str, t.shape))}]"
            size = weight_bytes(t, resting_dtype(job, t), shard_of(job, t, cut.parameters, cut.flat))
            states = 0
            if t.trained and held:
                mine = shard_of(job, t, cut.optimizer, cut.flat)
                states = optimizer_state_bytes(t, mine, job.optimizer.name, states_dtype(job, t))
            for n_bytes, component, of in (
                (size, "adapters" if ".lora_" in t.name else "parameters", ""),
                (states, "optimizer_states", f"{job.optimizer.name} states of "),
            ):
                if n_bytes:
                    g = groups.setdefault((of + t.name, shape, component), [0, 0])
                    g[0] += 1
                    g[1] += n_bytes
    if peak.name in ("forward", "loss", "backward"):
        where = peak.operation.rpartition(" in ")[2]
        for unit in units:
            if unit.name == where:
                for row in high.inventory if high is not None else ():
                    put(*row)
                break
            for row in unit.fresh.saved_inventory:
                put(*row)
    rows = sorted(groups.items(), key=lambda kv: -kv[1][1])[:top]
    return tuple(TensorGroup(k[0], k[1], v[0], v[1], k[2]) for k, v in rows)


def trainable_parameters(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Trained parameters of the whole model, and adapter parameters added to it."""
    whole = job._replace(layout=job.layout._replace(tensor=1, sequence=False, pipeline=1, expert=1, expert_tensor=1))
    units = part_units(whole, architecture, Part(0, architecture.num_layers, True, True))
    trained = added = 0
    for unit in units:
        for t in unit.tensors:
            if t.trained:
                trained += t.numel
            if ".lora_" in t.name:
                added += t.numel
    return trained, added
