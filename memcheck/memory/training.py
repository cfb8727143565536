"""All pipeline ranks of a training job."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

from memcheck.architecture.types import Architecture, Attention, LatentAttention
from memcheck.job.types import DTYPE_BYTES, Checkpoint, Initialization, Optimizer, TrainingJob
from memcheck.memory.fsdp import Group, wraps
from memcheck.memory.ledger.curve import High
from memcheck.memory.moves import Components, Held, Moment, Rest, highest, laid_on, one_held
from memcheck.memory.open_timeline import DIGIT, closed
from memcheck.memory.pipeline import NO_BORDER, Border, fullest, in_flight, most_in_flight, parts
from memcheck.memory.resting import resting_dtype, shard_of
from memcheck.memory.rests import rests, timeless
from memcheck.memory.state import optimizer_state_bytes, weight_bytes
from memcheck.memory.step import Step, group_of
from memcheck.memory.tape.tensor import rounded
from memcheck.memory.types import Instant, RankEstimate, TensorGroup
from memcheck.memory.units import Part, Unit, base_setting, part_units, stream_dtype
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
        reduced = [stateless(one) for one in each]
        return tuple(_rank(job, reduced, architecture, rank) for rank in ranks)
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


def _rank(job: TrainingJob, each: list[TrainingJob], architecture: Architecture, rank: int) -> RankEstimate:
    """The rank under the behaviour of PyTorch that needs most, the first of equal ones."""
    best: tuple[int, Rest, Components, Motion] | None = None
    for stripped in each:
        motion = _motion(stripped, architecture, rank)
        rest = rests(job, motion.held)
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


def _motion(job: TrainingJob, architecture: Architecture, rank: int) -> Motion:
    """The walk of a rank of a job that :func:`stateless` has reduced."""
    if not leaves_shards_open(job):
        return remembered_motion(job, architecture, rank)
    bare = undivided(job)
    held = _rank_units(bare, architecture, rank).held
    groups, sizes = _groups(timeless(job), held)
    motion = remembered_motion(bare, architecture, rank, groups)
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
    return RankUnits([unit._replace(tensors=own) for unit, own in zip(units, tensors, strict=True)], held)


@lru_cache(maxsize=4096)
def _groups(job: TrainingJob, held: Held) -> tuple[tuple[Group, ...], tuple[int, ...]]:
    """FSDP2's groups of a rank's distinct units with their shards left open, and the sizes of these."""
    distinct: dict[int, Any] = {id(tensors): tensors for tensors in held.units}
    found = [group_of(job, tensors) for tensors in distinct.values()]
    left_open = [g._replace(reduce_output=1 << DIGIT * i if g.reduce_output else 0) for i, g in enumerate(found)]
    return tuple(left_open), tuple(g.reduce_output for g in found)


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
    rest = rests(job, held)
    always = tuple((a.component, a.bytes + a.each * job.gradient_accumulation_steps) for a in beside.always())
    timeline = step.run((*rest.components, *always), rest.temporaries)
    instants = _with_around(job, held, timeline.instants())
    peak = max(instants, key=lambda i: i.allocated_bytes)
    parameters = sum(count * sum(t.numel for t in unit.tensors) for unit, count in step.distinct)
    high = timeline.unit_high(peak.name) if peak.name in STEP else None
    formulas = training_formulas(job, units, peak, high, beside.setting.style)
    largest = largest_tensors(job, units, peak, high)
    return RankEstimate(rank, instants, parameters, largest, formulas, _host_bytes(job, rank, units))


class Always(Record):
    """Bytes that live all step: some, and some for each micro-batch."""

    component: str
    bytes: int
    each: int = 0


class Beside:
    """What a pipeline rank holds beside its units."""

    def __init__(self, job: TrainingJob, architecture: Architecture, part: Part) -> None:
        self.job, self.architecture, self.part = job, architecture, part
        self.setting = base_setting(job, architecture)
        self.item = DTYPE_BYTES[stream_dtype(self.setting)]
        self.tokens = self.setting.batch * self.setting.sequence

    def always(self) -> list[Always]:
        """Bytes that live all step: token ids, rotary caches, pipeline receive buffers."""
        found = [Always("activations", self._rotary_caches())] if self.job.framework == "torchtitan" else []
        ids = rounded(8 * self.tokens)
        if self.part.embedding:
            found.append(Always("activations", ids))
        if self.part.head:
            found.append(Always("activations", ids))
        if self.job.layout.pipeline == 1:
            return found
        all_inputs = 0 if self.part.embedding else self._boundary()
        if not self.job.casts_gradients:
            # before 2.15 torch.distributed.pipelining allocates all receive buffers once (stage.py)
            all_gradients = 0 if self.part.head else self._boundary()
            found.append(Always("communication_buffers", 0, all_inputs + all_gradients))
        elif self.part.head:
            # since then every input is a new tensor; the losses that the last stage collects refer to all of theirs
            found.append(Always("activations", 0, all_inputs))
        return found

    def rotary_tables(self) -> int:
        """cos and sin, [1, S, rotary_dim] in the stream's dtype, made in each forward (*RotaryEmbedding.forward)."""
        if self.job.framework == "torchtitan":
            return 0
        rotary = rotary_width(self.architecture)
        item = 4 if self.job.framework == "litgpt" else self.item  # buffers made anew in the default dtype
        return 2 * rounded(self.setting.sequence * rotary * item) if rotary else 0

    def masks(self) -> int:
        """Attention masks of the whole model; checkpointed layers hold them, as arguments, to their backward."""
        if self.job.checkpointing.mode == "none":
            return 0
        from memcheck.memory.ledger.masks import model_mask_bytes

        return model_mask_bytes((b for b, _ in self.architecture.blocks), self.setting)

    def _rotary_caches(self) -> int:
        """torchtitan's buffers, one per layer: complex64 [S, dim / 2] (Llama, DeepSeek) or fp32 [S, 2 dim] (Qwen3).

        torchtitan models/common/rope.py, ComplexRoPE and CosSinRoPE.
        """
        each = 8 if self.architecture.model_type.startswith("qwen") else 4
        cache = rounded(self.job.sequence_length * rotary_width(self.architecture) * each)
        return cache * (self.part.last - self.part.first)

    def received_input(self) -> int:
        """Since torch 2.15 each micro-batch's input is received into a new tensor, which its backward lets go of."""
        lazy = self.job.layout.pipeline > 1 and self.job.casts_gradients
        return self._boundary() if lazy and not self.part.embedding and not self.part.head else 0

    def border(self) -> Border:
        """What torch.distributed.pipelining keeps of the tensors that stages exchange (stage.py, schedules.py)."""
        if self.job.layout.pipeline == 1:
            return NO_BORDER
        output = 0 if self.part.head else self._boundary()
        found = Border(input_gradient=0 if self.part.embedding else self._boundary())
        if not self.job.casts_gradients:
            return found._replace(output=output)
        # gpipe waits for its sends behind the last forward
        sends = self.job.gradient_accumulation_steps if self.job.layout.pipeline_schedule == "gpipe" else 1
        return found._replace(unsent_output=output, sends=sends, output_gradient=output)

    def _boundary(self) -> int:
        rows = self.tokens // self.setting.tensor if self.setting.sequence_parallel else self.tokens
        return rounded(rows * self.setting.hidden * self.item)


def rotary_width(architecture: Architecture) -> int:
    """Channels of the rotary tables; 0 without rotary embedding."""
    for block, _ in architecture.blocks:
        if isinstance(block.mixer, Attention) and block.mixer.rotary_dim:
            return block.mixer.rotary_dim
        if isinstance(block.mixer, LatentAttention):
            return block.mixer.qk_rope_head_dim
    return 0


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
                states = optimizer_state_bytes(t, mine, job.optimizer.name, t.dtype or job.recipe.optimizer_states)
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
