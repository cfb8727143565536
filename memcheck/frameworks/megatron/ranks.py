"""All pipeline ranks of a Megatron job."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.ranks import (
    Always,
    Components,
    RankPeak,
    RankStates,
    ResidentStates,
    ResidentTensors,
    at_peak,
    highest_rank,
    interned,
)
from memcheck.accounts.state import LocalTensor
from memcheck.accounts.unit import Unit
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.megatron import fsdp
from memcheck.frameworks.megatron.building import laying_out, with_building
from memcheck.frameworks.megatron.counted import counted, runs_of
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.frameworks.megatron.schedule import PassRun, Place, runs, settled, warm_up
from memcheck.frameworks.megatron.setting import megatron_setting
from memcheck.frameworks.megatron.stages import Chunk, stages
from memcheck.frameworks.megatron.step import Rank, SchedulePeaks
from memcheck.frameworks.megatron.units import SharedLayers, chunk_units, name_of, renumbered
from memcheck.frameworks.megatron.workspaces import ANY_DEVICE, Device
from memcheck.frameworks.megatron.workspaces import ChunkContents as Blocks
from memcheck.frameworks.torch.pipelining import fullest
from memcheck.job.keys import UNREAD, AnyBatch, any_batch
from memcheck.job.keys import state_key as without_step
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record


@lru_cache(maxsize=512)
def megatron_ranks(
    job: TrainingJob,
    architecture: Architecture,
    device: Device = ANY_DEVICE,
    *,
    inventory: bool = False,
) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank. ``inventory``: also the largest tensors and the formulas, of the worst one.

    Raises:
        UnsupportedError: activations are offloaded, or the pipeline layout does not fit the ranks.
    """
    if inventory:
        return _with_inventory(job, architecture, device)
    found: list[RankEstimate] = []
    states = states_of(state_key(job))
    for rank in remembered_steps(step_key(job, architecture.num_layers), architecture, device):
        step = at_peak(rank, states, job.gradient_accumulation_steps)
        instants = with_building(laying(job, states, rank), step.instants())
        found.append(RankEstimate(rank.number, instants, rank.parameters))
    return tuple(found)


def laying(job: TrainingJob, states: MegatronStates, rank: MegatronRank) -> Components:
    """What lives on the GPU while DDP lays out the rank's buffers, if it does so there."""
    return () if job.initialization.place == "host" else states.laying(rank.tensors, rank.chunks)


def _with_inventory(job: TrainingJob, architecture: Architecture, device: Device) -> tuple[RankEstimate, ...]:
    from memcheck.frameworks.megatron.inventory import with_inventory

    plain = megatron_ranks(job, architecture, device)
    worst = max(plain, key=lambda r: r.peak.allocated_bytes)
    index = worst.pipeline_rank
    held = stages(architecture.num_layers, job)[index]
    outline = _Ranks(job, architecture, device, inventory=True).outline(index, held)
    detailed = with_inventory(job, worst, outline.rank, _schedule(job, index, len(held)))
    return tuple(detailed if r is worst else r for r in plain)


def step_key(job: TrainingJob, num_layers: int) -> TrainingJob:
    """The job without the settings that only decide resident bytes: jobs that are equal after this share one walk of
    the step.

    Every buffer of a step follows from the model, the batch and the degrees that divide a layer. Of the optimizer, and
    of the data-parallel ranks, a step reads nothing; of ZeRO's stages only whether Megatron-FSDP shards. Micro-batches
    beyond those that the schedule settles into repeat the ones before, unless the output layer's are all kept.
    """
    layout = job.layout
    stage = layout.zero_stage if layout.zero_stage >= 2 else 0
    return job._replace(
        gradient_accumulation_steps=settles(job, num_layers)(job.gradient_accumulation_steps),
        optimizer=UNREAD,
        torch=UNREAD,
        initialization=UNREAD,
        checkpoint=UNREAD,
        layout=layout._replace(nodes=UNREAD, gpus_per_node=UNREAD, data=UNREAD, shard_group=UNREAD, zero_stage=stage),
    )


def settles(job: TrainingJob, num_layers: int) -> Callable[[int], int]:
    """How many of a step's micro-batches a :func:`step_key` job has; ``job``: with any batch."""
    if job.option("defer_embedding_wgrad_compute"):
        return lambda steps: steps
    place = _place(job, 0, len(stages(num_layers, job)[0]))
    return lambda steps: settled(place, steps)


class MegatronRank(RankPeak):
    """A rank of Megatron's schedules."""

    __slots__ = ("chunks",)

    def __init__(self, number: int, step: SchedulePeaks, outline: Outline) -> None:
        always = tuple([Always(component, n_bytes) for component, n_bytes in outline.rank.always])
        super().__init__(number, step, outline.held, always, outline.parameters)
        self.chunks = tuple(map(len, outline.rank.chunks))
        """Units of each model chunk."""


class MegatronStates(RankStates):
    """The states of the ranks of a :func:`state_key` job, and what lives while DDP lays its buffers out."""

    __slots__ = ("_laying",)

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job, resident_states)
        self._laying: dict[tuple[ResidentTensors, tuple[int, ...]], Components] = {}

    def laying(self, tensors: ResidentTensors, chunks: tuple[int, ...]) -> Components:
        """What lives while DDP lays its buffers out. ``chunks``: the number of units of each."""
        found = self._laying.get((tensors, chunks))
        if found is None:
            found = self._laying[tensors, chunks] = laying_out(self.job, tensors, chunks)
        return found


@lru_cache(maxsize=1024)
def states_of(job: TrainingJob) -> MegatronStates:
    """The states of a :func:`state_key` job; equal jobs share them."""
    return MegatronStates(job)


def resident_states(job: TrainingJob, tensors: ResidentTensors) -> ResidentStates:
    """The states of a rank of a :func:`state_key` job, and what the optimizer's step adds to them."""
    return code_of(job.framework.style).resident(job, counted(tensors.units))  # type: ignore[arg-type]


def state_key(job: TrainingJob) -> TrainingJob:
    """The job without what only decides how a step runs.

    Buffers follow from the tensors, the dtypes, the options, the optimizer, and over how many ranks they are divided;
    they read how many data-parallel ranks there are, and nothing of micro-batches.
    """
    layout = job.layout._replace(nodes=UNREAD, gpus_per_node=UNREAD)
    return without_step(job)._replace(gradient_accumulation_steps=UNREAD, layout=layout)


@lru_cache(maxsize=512)
def remembered_steps(job: TrainingJob, architecture: Architecture, device: Device) -> tuple[MegatronRank, ...]:
    """The steps of all pipeline ranks; equal jobs share them."""
    return rank_peaks(job, architecture, device, every_rank=True)


def rank_peaks(
    job: TrainingJob, architecture: Architecture, device: Device, *, every_rank: bool
) -> tuple[MegatronRank, ...]:
    """The walks of a job that :func:`step_key` has reduced. They are made from that job alone.

    ``every_rank``: otherwise of those that may be the worst.
    """
    held = stages(architecture.num_layers, job)
    several = any(len(chunks) > 1 for chunks in held)  # one with nothing in flight holds its last input
    wanted = range(len(held)) if every_rank or several else fullest(job, _contents(job, architecture, held))
    builder = _Ranks(job, architecture, device, inventory=False)
    found: list[MegatronRank] = []
    for rank in wanted:
        outline = builder.outline(rank, held[rank])
        step = SchedulePeaks(outline.rank, _schedule(job, rank, len(held[rank])), builder.names_of(held[rank]))
        found.append(MegatronRank(rank, step, outline))
    return tuple(found)


def _contents(job: TrainingJob, architecture: Architecture, held: tuple[tuple[Chunk, ...], ...]) -> list[Hashable]:
    """What tells pipeline ranks apart, in addition to the micro-batches that they hold.

    That is their layers, whether they lack a neighbour, and whether a forward follows a backward: only then are
    gradients still live in it.
    """
    layers = tuple(map(id, architecture.layers()))
    micro_batches, last = job.gradient_accumulation_steps, len(held) - 1
    found: list[Hashable] = []
    for rank, chunks in enumerate(held):
        waits = warm_up(_place(job, rank, len(chunks))) < len(chunks) * micro_batches
        parts = tuple((c.embedding, c.head, c.mtp, tuple([layers[i] for i in c.layers])) for c in chunks)
        found.append((rank == 0, rank == last, waits, parts))
    return found


class Outline(Record):
    """A rank without its schedule."""

    key: tuple[object, ...]
    """Equal for ranks that differ in nothing but the names of their layers and their place in the schedule."""
    rank: Rank
    held: ResidentTensors
    parameters: int


class _Ranks:
    """Builds the ranks of one job; what several ranks hold alike is built once."""

    def __init__(self, job: TrainingJob, architecture: Architecture, device: Device, *, inventory: bool) -> None:
        self.job, self.architecture, self.device, self.inventory = job, architecture, device, inventory
        self.setting = megatron_setting(job, architecture, device.arch)
        self.alike = SharedLayers(architecture.layers(), {})
        self.identities = list(map(id, self.alike.layers))
        self.outlines: dict[tuple[object, ...], Outline] = {}
        self.chunks: dict[tuple[object, ...], list[Unit]] = {}
        every = job.checkpointing.every_n_layers
        self.numbered = bool(job.freeze or every > 1 or self.setting.option("first_last_layers_bf16"))
        """Whether the number of a layer decides more than its name."""

    def outline(self, rank: int, chunks: tuple[Chunk, ...]) -> Outline:
        """What ``rank`` holds."""
        embedding, head = any(c.embedding for c in chunks), any(c.head for c in chunks)
        units = tuple(tuple(self._units(c, embedding, head)) for c in chunks)
        sends_back, sends_on = rank > 0, rank < self.job.layout.pipeline - 1
        parts = tuple([tuple([(id(u.fresh), id(u.tensors), times) for u, times in runs_of(chunk)]) for chunk in units])
        key = (parts, embedding, head, sends_back, sends_on)
        known = self.outlines.get(key)
        if known is None:
            known = self.outlines[key] = self._outline(key, chunks, units)
        return known._replace(rank=known.rank._replace(chunks=units))

    def names_of(self, chunks: tuple[Chunk, ...]) -> Callable[[int, int], str]:
        """How the unit at a place of one of a rank's chunks is called, which is made when it is asked for."""
        embedding, head = any(c.embedding for c in chunks), any(c.head for c in chunks)

        def name(index: int, place: int) -> str:
            layers = name_of(self.job, self.setting, chunks[index], place)
            return layers or self._units(chunks[index], embedding, head)[place].name

        return name

    def _units(self, chunk: Chunk, embedding: bool, head: bool) -> list[Unit]:
        if not (chunk.embedding or chunk.head or chunk.mtp):  # what else the rank holds is nothing to layers
            embedding = head = False
        blocks = tuple([self.identities[i] for i in chunk.layers])
        numbers = chunk.layers if self.numbered else ()
        key = (blocks, numbers, chunk.embedding, chunk.head, chunk.mtp, embedding, head)
        known = self.chunks.get(key)
        if known is not None:
            return renumbered(self.job, self.setting, known, chunk) if self.inventory else known
        found = self.chunks[key] = chunk_units(
            self.job,
            self.architecture,
            chunk,
            self.setting,
            shares=self.architecture.tie_word_embeddings and embedding and head,
            embeds=embedding,
            inventory=self.inventory,
            alike=self.alike,
        )
        return found

    def _outline(
        self, key: tuple[object, ...], chunks: tuple[Chunk, ...], units: tuple[tuple[Unit, ...], ...]
    ) -> Outline:
        job, a = self.job, self.architecture
        _, embedding, head, sends_back, sends_on = key
        flat = [u for chunk in units for u in chunk]
        alike = runs_of(flat)
        kinds: dict[int, tuple[tuple[LocalTensor, ...], int]] = {}
        for u, times in alike:
            kinds[id(u.tensors)] = (u.tensors, kinds.get(id(u.tensors), (u.tensors, 0))[1] + times)
        tensors = [(t, count) for of_unit, count in kinds.values() for t in of_unit]
        held_layers = [self.alike.layers[i] for c in chunks for i in c.layers]
        distinct = dict(zip(map(id, held_layers), held_layers, strict=True))
        blocks = Blocks(list(distinct.values()), tensors, bool(embedding), bool(head), len(chunks))
        code = code_of(self.setting.style)
        side = code.always(job, a, self.setting, blocks, self.device)
        boundary = _boundary(job, a) if job.layout.pipeline > 1 else 0
        several, overlaps = len(chunks) > 1, job.option("overlap_p2p_communication") is not False
        sharded = fsdp.is_sharded(job)
        rank = Rank(
            chunks=units,
            always=(*side, ("communication_buffers", fsdp.root_bytes(job, flat) if sharded else 0)),
            forward_only=code.forward_only(job, self.setting) if embedding or head else 0,
            input_gradient=boundary if sends_back or several else 0,
            output_gradient=boundary if sends_on or several else 0,
            cached_output=boundary if job.option("deallocate_pipeline_outputs") is False else 0,
            held_input=boundary if code.holds_inputs and (sends_back or several) else 0,
            keeps_warm_input=bool(several and sends_back and overlaps),  # the first rank receives none at its end
            exchanged=1 + overlaps if several else 0,
            extras=tuple(tuple(fsdp.extras(job, list(u))) for u in units) if sharded else (),
        )
        held = interned([(u.tensors, times) for u, times in alike])
        return Outline(key, rank, held, sum(count * t.numel for t, count in tensors))


def _schedule(job: TrainingJob, rank: int, chunks: int) -> tuple[PassRun, ...]:
    # overlap_moe_expert_parallel_comm runs a layer's backward in parallel with the next micro-batch's forward of
    # another layer (combined_1f1b.py): one layer's activations die as another's are made, so as many live as without
    return runs(_place(job, rank, chunks), job.gradient_accumulation_steps)


def _place(job: TrainingJob, rank: int, chunks: int) -> Place:
    pipeline = job.layout.pipeline
    group = int(str(job.option("microbatch_group_size_per_virtual_pipeline_stage") or pipeline))
    place = Place(rank, pipeline, chunks, group, bool(job.option("overlap_moe_expert_parallel_comm")))
    return code_of(job.framework.style).place(job, place)


def _boundary(job: TrainingJob, a: Architecture) -> int:
    """Hidden states between pipeline stages (schedules.py, get_tensor_shapes)."""
    tokens = job.micro_batch_size * (job.sequence_length // job.layout.context)
    if job.layout.sequence and job.layout.tensor > 1:
        tokens //= job.layout.tensor
    return rounded(tokens * a.hidden_size * DTYPE_BYTES[job.recipe.compute])


class MegatronWorst:
    """Finds the worst rank of jobs that differ in their batch alone."""

    __slots__ = ("_any_batch", "_device", "_settles", "_states")

    def __init__(self, job: TrainingJob, architecture: Architecture, device: Device) -> None:
        """``job``: any of the jobs, which differ in their batch alone.

        Raises:
            UnsupportedError: activations are offloaded, or the pipeline layout does not fit the ranks.
        """
        self._device, self._states = device, states_of(state_key(job))
        self._any_batch = any_batch(step_key(job, architecture.num_layers), architecture)
        self._settles = settles(job, architecture.num_layers)

    def rank(self, job: TrainingJob) -> RankEstimate:
        """The rank with the highest peak, the first of equal ones, with that instant alone.

        Among ranks that hold the same the first has the most in flight, so that the others need not be looked at.
        """
        states, steps = self._states, self._settles(job.gradient_accumulation_steps)
        ranks = _ranks_of(self._any_batch, self._device, job.micro_batch_size, job.sequence_length, steps)
        made = {rank.number: laying(job, states, rank) for rank in ranks}
        found = highest_rank(ranks, states, steps, lambda rank: sum([n for _, n in made[rank.number]]))
        if found.before <= found.peak:
            instants = found.instant()
        else:
            instants = with_building(made[found.rank.number], found.instants())[:1]
        return RankEstimate(found.rank.number, instants, found.rank.parameters)


@lru_cache(maxsize=2048)
def _ranks_of(
    job: AnyBatch, device: Device, micro_batch_size: int, sequence_length: int, steps: int
) -> tuple[MegatronRank, ...]:
    """The steps of the ranks that may be the fullest; jobs that differ in other sizes share them.

    ``steps``: micro-batches, as many as :func:`settles` leaves.
    """
    found = job.of(micro_batch_size, sequence_length, steps)
    return rank_peaks(found, job.architecture, device, every_rank=False)
