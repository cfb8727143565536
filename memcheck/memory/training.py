"""All pipeline ranks of a training job."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.estimate import Instant, RankEstimate, TensorGroup
from memcheck.accounts.moves import Components, Held, Rest, highest, laid_on
from memcheck.accounts.state import LocalTensor, optimizer_state_bytes, weight_bytes
from memcheck.accounts.unit import Part, Unit
from memcheck.autograd.curve import High
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.memory.motion import (
    Motion,
    States,
    closed_motion,
    job_units,
    rank_step,
    settled,
    stateless,
    states_of,
)
from memcheck.memory.resting import resting_dtype, shard_of, states_dtype
from memcheck.memory.rests import rests, timeless
from memcheck.memory.runs import Accumulation, Units
from memcheck.models.types import Architecture
from memcheck.record import Record

STEP = ("init", "forward", "loss", "backward", "optimizer")
"""Instants that the walk of a step has."""


def training_ranks(
    job: TrainingJob, architecture: Architecture, *, inventory: bool = False
) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank."""
    return remembered_ranks(job if inventory else _shortened(job), architecture, inventory)


def _shortened(job: TrainingJob) -> TrainingJob:
    """The job without micro-batches that repeat others, if it has no pipeline."""
    return job if job.layout.pipeline > 1 else job._replace(gradient_accumulation_steps=settled(job))


@lru_cache(maxsize=512)
def remembered_ranks(job: TrainingJob, architecture: Architecture, inventory: bool) -> tuple[RankEstimate, ...]:
    """The same, kept: what differs between the plans of one repository often does not matter here."""
    if inventory:
        return _detailed(job, architecture)
    each, states = [stateless(job, torch) for torch in job.torch], states_of(timeless(job))
    numbers = range(job.layout.pipeline)
    motions = [[closed_motion(one, architecture, number) for one in each] for number in numbers]
    return tuple(laid(job, peak_rank(job, states, *found)) for found in zip(numbers, motions, strict=True))


class PeakRank(Record):
    """A rank under the behaviour of PyTorch that needs most, the first of equal ones."""

    number: int
    peak: int
    rest: Rest
    beside: Components
    motion: Motion


def peak_rank(job: TrainingJob, states: States, number: int, motions: list[Motion]) -> PeakRank:
    """``motions``: the rank's step under every behaviour."""
    steps = job.gradient_accumulation_steps
    best: PeakRank | None = None
    for found in motions:
        rest, beside = states.rest(found.held), found.beside(steps)
        peak = highest(rest, found.tops, beside)
        if best is None or peak > best.peak:
            best = PeakRank(number, peak, rest, beside, found)
    assert best is not None  # noqa: S101 - every job has a version
    return best


def laid(job: TrainingJob, rank: PeakRank) -> RankEstimate:
    """The rank's step on top of what rests, and what comes before and behind it."""
    found = rank.motion
    instants = _with_around(job, found.held, laid_on(rank.rest, found.moments(), rank.beside))
    return RankEstimate(rank.number, instants, found.parameters, host_bytes=found.host_bytes)


def _detailed(job: TrainingJob, architecture: Architecture) -> tuple[RankEstimate, ...]:
    """Ranks with their largest tensors and formulas."""
    each = [job._replace(torch=(torch,)) for torch in job.torch]
    found = []
    for rank in range(job.layout.pipeline):
        detailed = (_with_inventory(one, architecture, rank) for one in each)
        found.append(max(detailed, key=lambda estimate: estimate.peak.allocated_bytes))
    return tuple(found)


def is_fixed_by_step(job: TrainingJob) -> bool:
    """Whether no moment before or behind the step may exceed it."""
    return job.initialization.place != "device" and job.checkpoint.offload != "none"


def _with_around(job: TrainingJob, held: Held, instants: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """The instants of a step, with those before and behind it that may exceed it."""
    if is_fixed_by_step(job):
        return instants
    from memcheck.memory.around import around

    return around(job, held, instants)


def _with_inventory(job: TrainingJob, architecture: Architecture, rank: int) -> RankEstimate:
    """A rank with its largest tensors and its formulas, walked on top of its states."""
    from memcheck.memory.formulas import training_formulas

    found = rank_step(job, architecture, rank, job_units(job, architecture, inventory=True))
    rest = rests(timeless(job), found.units.held)
    always = tuple((a.component, a.bytes + a.each * job.gradient_accumulation_steps) for a in found.beside.always())
    optimizer = f"{job.optimizer.name} step ({job.optimizer.implementation})"
    timeline = found.walk((*rest.components, *always), optimizer, rest.temporaries)
    instants = _with_around(job, found.units.held, timeline.instants())
    peak = max(instants, key=lambda i: i.allocated_bytes)
    high = timeline.unit_high(peak.name) if peak.name in STEP else None
    units = [run.unit._replace(name=name) for run in found.units.runs for name in run.names()]
    formulas = training_formulas(job, units, peak, high, found.beside.setting.style)
    largest = largest_tensors(job, units, peak, high)
    parameters, host = found.counts()
    return RankEstimate(rank, instants, parameters, largest, formulas, host)


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
            mine = shard_of(job, t, cut.parameters, cut.flat)
            dtype = resting_dtype(job, t)
            size = weight_bytes(t, dtype, mine)
            rows = [("adapters" if ".lora_" in t.name else "parameters", "", size, mine, dtype)]
            if t.trained and held:
                mine, dtype = shard_of(job, t, cut.optimizer, cut.flat), states_dtype(job, t)
                states = optimizer_state_bytes(t, mine, job.optimizer.name, dtype)
                rows.append(("optimizer_states", f"{job.optimizer.name} states of ", states, mine, dtype))
            for component, of, n_bytes, elements, stated in rows:
                if n_bytes:
                    g = groups.setdefault((of + t.name, resting_shape(t, elements, stated, n_bytes), component), [0, 0])
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
    found = sorted(groups.items(), key=lambda kv: -kv[1][1])[:top]
    return tuple(TensorGroup(k[0], k[1], v[0], v[1], k[2]) for k, v in found)


def resting_shape(tensor: LocalTensor, elements: int, dtype: str, n_bytes: int) -> str:
    """``1/32 of [28672, 8192] fp32``: the whole tensor and the rank's part of it.

    Without a dtype where the bytes are not those of one or two copies in it: what is quantised has scales beside it.
    """
    whole = f"[{', '.join(map(str, tensor.shape))}]"
    each = elements * DTYPE_BYTES[dtype]
    plain = any(0 <= n_bytes - copies * each < 1024 * copies for copies in (1, 2))
    part = "" if elements >= tensor.numel else f"1/{round(tensor.numel / elements)} of "
    return f"{part}{whole} {dtype}" if plain else f"{part}{whole}"


def trainable_parameters(job: TrainingJob, architecture: Architecture) -> tuple[int, int]:
    """Trained parameters of the whole model, and adapter parameters added to it."""
    whole = job._replace(layout=job.layout._replace(tensor=1, sequence=False, pipeline=1, expert=1, expert_tensor=1))
    part = Part(0, architecture.num_layers, True, True)
    trained = added = 0
    for run in Units(whole, architecture, Accumulation(False, None, None), False).runs(part):
        for t in run.unit.tensors:
            trained += run.times * t.numel if t.trained else 0
            added += run.times * t.numel if ".lora_" in t.name else 0
    return trained, added
