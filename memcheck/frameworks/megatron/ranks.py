"""All pipeline ranks of a Megatron job."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from itertools import chain

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.ranks import (
    Always,
    Components,
    RankPeak,
    RankStates,
    ResidentStates,
    ResidentTensors,
    Unit,
    at_peak,
    highest_rank,
    interned,
)
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.megatron import fsdp
from memcheck.frameworks.megatron.buffers import counted, runs_of
from memcheck.frameworks.megatron.inventory import with_inventory
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.frameworks.megatron.schedule import PassRun, SchedulePosition, runs, settled, warm_up
from memcheck.frameworks.megatron.setting import megatron_setting
from memcheck.frameworks.megatron.stages import Chunk, stages
from memcheck.frameworks.megatron.step import Rank, SchedulePeaks
from memcheck.frameworks.megatron.tensors import buffer_layout_components, with_building
from memcheck.frameworks.megatron.units import SharedLayers, chunk_units, name_of, renumbered
from memcheck.frameworks.megatron.workspaces import ANY_DEVICE, Device
from memcheck.frameworks.megatron.workspaces import ChunkContents as Blocks
from memcheck.frameworks.torch.pipelining import ranks_with_highest_peak
from memcheck.job import keys
from memcheck.job.keys import UNREAD, AnyBatch, any_batch
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
    """Estimate the memory of every pipeline rank.

    ``inventory``: also list the largest tensors and the formulas of the worst rank.

    Raises:
        UnsupportedError: activations are offloaded, or the pipeline layout does not fit the ranks.
    """
    if inventory:
        return _with_inventory(job, architecture, device)
    estimates: list[RankEstimate] = []
    states = states_of(state_key(job))
    for rank in remembered_steps(step_key(job, architecture.num_layers), architecture, device):
        step = at_peak(rank, states, job.gradient_accumulation_steps)
        instants = with_building(buffer_layout_bytes(job, states, rank), step.instants())
        estimates.append(RankEstimate(rank.number, instants, rank.parameters))
    return tuple(estimates)


def buffer_layout_bytes(job: TrainingJob, states: MegatronStates, rank: MegatronRank) -> Components:
    """Return the bytes per component while DDP copies the rank's parameters into its buffers on the GPU.

    Empty where the model is initialised on the host.
    """
    return () if job.initialization.place == "host" else states.buffer_layout_bytes(rank.tensors, rank.chunks)


def _with_inventory(job: TrainingJob, architecture: Architecture, device: Device) -> tuple[RankEstimate, ...]:
    """Estimate all pipeline ranks, with an inventory of every allocation for the rank of the highest peak.

    An inventory names each tensor and saved activation, so layers are not shared, and only one rank gets it.
    """
    estimates = megatron_ranks(job, architecture, device)
    worst = max(estimates, key=lambda estimate: estimate.peak.allocated_bytes)
    index = worst.pipeline_rank
    chunks = stages(architecture.num_layers, job)[index]
    contents = _RankBuilder(job, architecture, device, inventory=True).outline(index, chunks)
    detailed = with_inventory(job, worst, contents.rank, _schedule(job, index, len(chunks)))
    return tuple(detailed if estimate is worst else estimate for estimate in estimates)


def step_key(job: TrainingJob, num_layers: int) -> TrainingJob:
    """Return the job without the settings that only decide resident bytes; jobs of equal key share one walk of the
    step.

    Every buffer of a step follows from the model, the batch and the degrees that divide a layer. A step reads nothing
    of the optimizer and of the data-parallel ranks, and of ZeRO's stages only whether Megatron-FSDP shards.
    Micro-batches beyond :func:`distinct_micro_batches` repeat the ones before.
    """
    layout = job.layout
    stage = layout.zero_stage if layout.zero_stage >= 2 else 0
    return job._replace(
        gradient_accumulation_steps=distinct_micro_batches(job, num_layers)(job.gradient_accumulation_steps),
        optimizer=UNREAD,
        torch=UNREAD,
        initialization=UNREAD,
        checkpoint=UNREAD,
        layout=layout._replace(nodes=UNREAD, gpus_per_node=UNREAD, data=UNREAD, shard_group=UNREAD, zero_stage=stage),
    )


def distinct_micro_batches(job: TrainingJob, num_layers: int) -> Callable[[int], int]:
    """Return a function from a job's micro-batches to the number that the walk of its step needs.

    Later micro-batches repeat earlier ones, unless the output layer's inputs are all kept until the end of the step
    (``defer_embedding_wgrad_compute``). ``job`` may have any batch.
    """
    if job.option("defer_embedding_wgrad_compute"):
        return lambda steps: steps
    first_rank = _schedule_position(job, 0, len(stages(num_layers, job)[0]))
    return lambda steps: settled(first_rank, steps)


class MegatronRank(RankPeak):
    """A rank of Megatron's schedules."""

    __slots__ = ("chunks",)

    def __init__(self, number: int, step: SchedulePeaks, outline: RankContents) -> None:
        always = tuple([Always(component, n_bytes) for component, n_bytes in outline.rank.always_held])
        super().__init__(number, step, outline.resident, always, outline.parameters)
        self.chunks = tuple(map(len, outline.rank.chunks))
        """Units of each model chunk."""


class MegatronStates(RankStates):
    """The states of the ranks of a :func:`state_key` job, and what lives while DDP lays its buffers out."""

    __slots__ = ("_laying",)

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job, resident_states)
        self._laying: dict[tuple[ResidentTensors, tuple[int, ...]], Components] = {}

    def buffer_layout_bytes(self, tensors: ResidentTensors, chunks: tuple[int, ...]) -> Components:
        """Return the bytes per component while DDP lays its buffers out. ``chunks``: the number of units of each."""
        laid_out = self._laying.get((tensors, chunks))
        if laid_out is None:
            laid_out = self._laying[tensors, chunks] = buffer_layout_components(self.job, tensors, chunks)
        return laid_out


@lru_cache(maxsize=1024)
def states_of(job: TrainingJob) -> MegatronStates:
    """The states of a :func:`state_key` job; equal jobs share them."""
    return MegatronStates(job)


def resident_states(job: TrainingJob, tensors: ResidentTensors) -> ResidentStates:
    """The states of a rank of a :func:`state_key` job, and what the optimizer's step adds to them."""
    return code_of(job.framework.style).resident(job, counted(tensors.units))  # type: ignore[arg-type]


def state_key(job: TrainingJob) -> TrainingJob:
    """Return the job without the settings that only decide how a step runs; jobs of equal key share their states.

    Buffers follow from the tensors, the dtypes, the options, the optimizer, and over how many ranks they are divided.
    Unlike :func:`memcheck.job.keys.state_key` the key has the exact number of data-parallel ranks, to which buffers are
    padded, and nothing of micro-batches.
    """
    layout = job.layout._replace(nodes=UNREAD, gpus_per_node=UNREAD)
    return keys.state_key(job)._replace(gradient_accumulation_steps=UNREAD, layout=layout)


@lru_cache(maxsize=512)
def remembered_steps(job: TrainingJob, architecture: Architecture, device: Device) -> tuple[MegatronRank, ...]:
    """The steps of all pipeline ranks; equal jobs share them."""
    return rank_peaks(job, architecture, device, every_rank=True)


def rank_peaks(
    job: TrainingJob, architecture: Architecture, device: Device, *, every_rank: bool
) -> tuple[MegatronRank, ...]:
    """Walk the step of the pipeline ranks of a job that :func:`step_key` has reduced.

    ``every_rank``: all ranks; otherwise only those that can have the highest peak.
    """
    rank_chunks = stages(architecture.num_layers, job)
    interleaved = any(len(chunks) > 1 for chunks in rank_chunks)  # one with nothing in flight holds its last input
    rank_numbers = (
        range(len(rank_chunks))
        if every_rank or interleaved
        else ranks_with_highest_peak(job, _rank_contents(job, architecture, rank_chunks))
    )
    builder = _RankBuilder(job, architecture, device, inventory=False)
    peaks: list[MegatronRank] = []
    for rank in rank_numbers:
        outline = builder.outline(rank, rank_chunks[rank])
        step = SchedulePeaks(
            outline.rank, _schedule(job, rank, len(rank_chunks[rank])), builder.names_of(rank_chunks[rank])
        )
        peaks.append(MegatronRank(rank, step, outline))
    return tuple(peaks)


def _rank_contents(
    job: TrainingJob, architecture: Architecture, rank_chunks: tuple[tuple[Chunk, ...], ...]
) -> list[Hashable]:
    """Return a key for each pipeline rank: ranks with equal keys differ only in the number of micro-batches in flight.

    The key has the rank's layers, whether it is the first or the last, and whether its schedule has a steady phase
    (1F1B). Only there does a forward follow a backward, with the received gradient still live.
    """
    layers = tuple(map(id, architecture.layers()))
    micro_batches, last = job.gradient_accumulation_steps, len(rank_chunks) - 1
    contents: list[Hashable] = []
    for rank, chunks in enumerate(rank_chunks):
        has_steady_phase = warm_up(_schedule_position(job, rank, len(chunks))) < len(chunks) * micro_batches
        chunk_contents = tuple(
            (chunk.has_embedding, chunk.has_head, chunk.mtp_layers, tuple([layers[i] for i in chunk.layers]))
            for chunk in chunks
        )
        contents.append((rank == 0, rank == last, has_steady_phase, chunk_contents))
    return contents


class RankContents(Record):
    """A rank without its schedule."""

    key: tuple[object, ...]
    """Equal for ranks that differ in nothing but the names of their layers and their place in the schedule."""
    rank: Rank
    resident: ResidentTensors
    parameters: int


class _RankBuilder:
    """Builds the ranks of one job; what several ranks have in common is built once."""

    def __init__(self, job: TrainingJob, architecture: Architecture, device: Device, *, inventory: bool) -> None:
        """``inventory``: name each tensor and saved activation, so that layers are not shared between ranks."""
        self.job, self.architecture = job, architecture
        self.device, self.inventory = device, inventory
        self.setting = megatron_setting(job, architecture, device.arch)
        self.shared_layers = SharedLayers(architecture.layers(), {})
        self.layer_ids = [id(layer) for layer in self.shared_layers.layers]
        self.outlines: dict[tuple[object, ...], RankContents] = {}
        self.chunks: dict[tuple[object, ...], list[Unit]] = {}
        every_n_layers = job.checkpointing.every_n_layers
        self.numbered = bool(job.freeze or every_n_layers > 1 or self.setting.option("first_last_layers_bf16"))
        """Whether the number of a layer decides more than its name."""

    def outline(self, rank: int, chunks: tuple[Chunk, ...]) -> RankContents:
        """Return what a pipeline rank holds and runs, without its schedule; ranks with equal contents share it.

        ``rank``: its number in the pipeline. ``chunks``: the parts of the model on it.
        """
        embedding, head = any(chunk.has_embedding for chunk in chunks), any(chunk.has_head for chunk in chunks)
        units = tuple(tuple(self._units(chunk, embedding, head)) for chunk in chunks)
        sends_back, sends_on = rank > 0, rank < self.job.layout.pipeline - 1
        unit_runs = []
        for units_of_chunk in units:
            equal_units = [(id(unit.first_curve), id(unit.tensors), times) for unit, times in runs_of(units_of_chunk)]
            unit_runs.append(tuple(equal_units))
        key = (tuple(unit_runs), embedding, head, sends_back, sends_on)
        contents = self.outlines.get(key)
        if contents is None:
            contents = self.outlines[key] = self._outline(key, chunks, units)
        return contents._replace(rank=contents.rank._replace(chunks=units))

    def names_of(self, chunks: tuple[Chunk, ...]) -> Callable[[int, int], str]:
        """Return a function from (chunk index, unit index) to the unit's name, which is made when it is asked for."""
        embedding, head = any(chunk.has_embedding for chunk in chunks), any(chunk.has_head for chunk in chunks)

        def name(index: int, unit_index: int) -> str:
            """Name the unit at ``unit_index`` of the chunk at ``index``: its layers, or embedding, head or loss."""
            layer_names = name_of(self.job, self.setting, chunks[index], unit_index)
            return layer_names or self._units(chunks[index], embedding, head)[unit_index].name

        return name

    def _units(self, chunk: Chunk, embedding: bool, head: bool) -> list[Unit]:
        """Build the units of a chunk, or take them from an equal chunk.

        ``embedding`` and ``head``: whether any chunk of the rank has them, which decides if their weights are shared.
        """
        if not (chunk.has_embedding or chunk.has_head or chunk.mtp_layers):
            embedding = head = False  # layers alone are equal wherever the embedding and the head are
        layer_ids = tuple([self.layer_ids[i] for i in chunk.layers])
        layer_numbers = chunk.layers if self.numbered else ()
        key = (layer_ids, layer_numbers, chunk.has_embedding, chunk.has_head, chunk.mtp_layers, embedding, head)
        built = self.chunks.get(key)
        if built is not None:
            return renumbered(self.job, self.setting, built, chunk) if self.inventory else built
        built_units = self.chunks[key] = chunk_units(
            self.job,
            self.architecture,
            chunk,
            self.setting,
            shares_embedding=self.architecture.tie_word_embeddings and embedding and head,
            rank_has_embedding=embedding,
            inventory=self.inventory,
            shared_layers=self.shared_layers,
        )
        return built_units

    def _outline(
        self, key: tuple[object, ...], chunks: tuple[Chunk, ...], units: tuple[tuple[Unit, ...], ...]
    ) -> RankContents:
        """Build what a pipeline rank holds: tensors, parameter count, workspaces, and buffers sent between stages.

        ``key``: of :meth:`outline`, which says where the rank is in the pipeline. ``units``: of each chunk. Equal
        layers share one tuple of tensors, which is listed once with the number of layers.
        """
        job, architecture = self.job, self.architecture
        _, embedding, head, sends_back, sends_on = key
        all_units = list(chain.from_iterable(units))
        unit_runs = runs_of(all_units)
        tensors = _count_tensors(unit_runs)
        all_layers = self.shared_layers.layers
        layers = {id(all_layers[i]): all_layers[i] for chunk in chunks for i in chunk.layers}
        blocks = Blocks(list(layers.values()), tensors, bool(embedding), bool(head), len(chunks))
        code = code_of(self.setting.style)
        workspace_components = code.side_buffers(job, architecture, self.setting, blocks, self.device)
        boundary_bytes = _boundary_bytes(job, architecture) if job.layout.pipeline > 1 else 0
        interleaved, overlaps_p2p = len(chunks) > 1, job.option("overlap_p2p_communication") is not False
        is_fsdp = fsdp.is_sharded(job)
        rank = Rank(
            chunks=units,
            always_held=(
                *workspace_components,
                ("communication_buffers", fsdp.root_bytes(job, all_units) if is_fsdp else 0),
            ),
            forward_only_bytes=code.forward_only(job, self.setting) if embedding or head else 0,
            input_gradient=boundary_bytes if sends_back or interleaved else 0,
            output_gradient=boundary_bytes if sends_on or interleaved else 0,
            cached_output=boundary_bytes if job.option("deallocate_pipeline_outputs") is False else 0,
            held_input=boundary_bytes if code.holds_inputs and (sends_back or interleaved) else 0,
            # the first rank receives no input at the end of its warm-up
            keeps_warm_input=bool(interleaved and sends_back and overlaps_p2p),
            exchanged_tensors=(2 if overlaps_p2p else 1) if interleaved else 0,
            extras=tuple(tuple(fsdp.extras(job, list(unit))) for unit in units) if is_fsdp else (),
        )
        resident = interned([(unit.tensors, times) for unit, times in unit_runs])
        return RankContents(key, rank, resident, sum(count * t.numel for t, count in tensors))


def _count_tensors(unit_runs: list[tuple[Unit, int]]) -> list[tuple[LocalTensor, int]]:
    """List the tensors of a rank, each with the number of equal ones: equal layers share one tuple of tensors.

    ``unit_runs``: units in order, each with the number of equal ones in a row.
    """
    units_with: dict[int, tuple[tuple[LocalTensor, ...], int]] = {}
    for unit, times in unit_runs:
        _, count = units_with.get(id(unit.tensors), (unit.tensors, 0))
        units_with[id(unit.tensors)] = unit.tensors, count + times
    return [(tensor, count) for tensors, count in units_with.values() for tensor in tensors]


def _schedule(job: TrainingJob, rank: int, chunks: int) -> tuple[PassRun, ...]:
    """List the forward and backward passes of one pipeline rank in the order of Megatron's schedule.

    ``chunks``: model chunks of the rank (virtual stages).
    """
    # overlap_moe_expert_parallel_comm runs a layer's backward in parallel with the next micro-batch's forward of
    # another layer (combined_1f1b.py): one layer's activations die as another's are made, so as many live as without
    return runs(_schedule_position(job, rank, chunks), job.gradient_accumulation_steps)


def _schedule_position(job: TrainingJob, rank: int, chunks: int) -> SchedulePosition:
    """Return the position of a rank in the pipeline schedule, with its number of model chunks and their group size."""
    pipeline = job.layout.pipeline
    group = int(str(job.option("microbatch_group_size_per_virtual_pipeline_stage") or pipeline))
    position = SchedulePosition(rank, pipeline, chunks, group, bool(job.option("overlap_moe_expert_parallel_comm")))
    return code_of(job.framework.style).position(job, position)


def _boundary_bytes(job: TrainingJob, architecture: Architecture) -> int:
    """Return the bytes of the hidden states sent between pipeline stages (schedules.py, get_tensor_shapes)."""
    tokens = job.micro_batch_size * (job.sequence_length // job.layout.context)
    if job.layout.sequence and job.layout.tensor > 1:
        tokens //= job.layout.tensor
    return rounded(tokens * architecture.hidden_size * DTYPE_BYTES[job.recipe.compute])


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
        self._settles = distinct_micro_batches(job, architecture.num_layers)

    def rank(self, job: TrainingJob) -> RankEstimate:
        """Estimate the rank with the highest peak, the first of equal ones, at that instant alone.

        Among ranks that hold the same units the first has the most micro-batches in flight, so the others are skipped.
        """
        states, steps = self._states, self._settles(job.gradient_accumulation_steps)
        ranks = _ranks_of(self._any_batch, self._device, job.micro_batch_size, job.sequence_length, steps)
        layout_bytes = {rank.number: buffer_layout_bytes(job, states, rank) for rank in ranks}
        worst = highest_rank(ranks, states, steps, lambda rank: sum([n for _, n in layout_bytes[rank.number]]))
        if worst.bytes_before_step <= worst.peak:
            instants = worst.instant()
        else:
            instants = with_building(layout_bytes[worst.rank.number], worst.instants())[:1]
        return RankEstimate(worst.rank.number, instants, worst.rank.parameters)


@lru_cache(maxsize=2048)
def _ranks_of(
    job: AnyBatch, device: Device, micro_batch_size: int, sequence_length: int, steps: int
) -> tuple[MegatronRank, ...]:
    """Return the recorded steps of the pipeline ranks that can have the highest peak.

    ``micro_batch_size``, ``sequence_length``, ``steps``: sizes of the batch; ``steps`` are micro-batches per step, as
    many as :func:`distinct_micro_batches` leaves. Jobs that differ in nothing else share the result.
    """
    sized = job.of(micro_batch_size, sequence_length, steps)
    return rank_peaks(sized, job.architecture, device, every_rank=False)
