"""The step of a pipeline rank without the resident bytes, and what it is made from."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain

from memcheck.accounts.ranks import NEVER_GATHERED, Always, Part, RankPeak, RankStates, ResidentTensors, Run, interned
from memcheck.accounts.state import LocalTensor
from memcheck.errors import UnsupportedError
from memcheck.frameworks.torch.data_parallel import (
    NO_GROUP,
    NO_UNIT_GROUPS,
    Group,
    UnitGroups,
    accumulates_unsharded,
    all_gather_dtype,
    ends_have_own_groups,
    ends_stay_gathered,
    fsdp_group,
    has_adapter_units,
    is_hybrid_sharded,
    is_in_end_group,
    is_zero3,
    loss_reduces_head,
    mixes_adapters,
    runs_chunk_by_chunk,
    uses_flat_parameters,
    uses_fsdp,
)
from memcheck.frameworks.torch.model_buffers import ModelBuffers
from memcheck.frameworks.torch.pipelining import in_flight, max_in_flight, stage_parts
from memcheck.frameworks.torch.rank_tensors import checked_architecture
from memcheck.frameworks.torch.rank_units import Units, accumulation, units_of
from memcheck.frameworks.torch.recording import (
    NO_GROUP_SIZES,
    GroupSizes,
    RankProgram,
    RunSizes,
    StepPeaks,
    group_sizes,
    outside_sizes,
    run_sizes,
)
from memcheck.frameworks.torch.resident import resident_states, shard_placement
from memcheck.frameworks.torch.step import step_options, step_sizes, wrapped_kinds
from memcheck.job.keys import UNREAD
from memcheck.job.types import Layout, Optimizer, TrainingJob
from memcheck.models.types import Architecture
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MICRO_BATCHES = 3
"""Number of micro-batches to walk: without a pipeline, those after the second and before the last repeat the second."""
DIVIDED = 2
"""A size of the sharding group, used as a cache key for all sizes."""
GRADIENT_FIELDS = (
    "reduce_scatter_input",
    "reduce_scatter_output",
    "sharded_gradients",
    "unsharded_gradients",
    "last_unsharded_gradient",
    "divided_gradients",
)
"""Fields of a group that are sizes of its gradients, and of buffers of their reduction."""
AFTER_BACKWARD = Optimizer(UNREAD, UNREAD, UNREAD, in_backward=False)
"""Any optimizer that steps once the backward is over."""


def step_key(job: TrainingJob, torch: str) -> TrainingJob:
    """Return the job without the settings that do not affect its forward and backward: the key of the recorded step.

    ``torch``: the version of PyTorch whose behaviour is recorded. Left out are the optimizer, initialization and
    saving, micro-batches that repeat earlier ones (:func:`distinct_micro_batches`), and how many data-parallel ranks
    there are, beyond one or several; under sharding the size of the group stays.
    """
    layout = job.layout
    data = min(layout.data, 2)  # one replica, or several
    stage, group_size, optimizer = layout.zero_stage, layout.shard_group, job.optimizer
    if not job.framework.has_sharding_engine:
        optimizer = optimizer if optimizer.in_backward else AFTER_BACKWARD
        if stage < 2:
            stage, group_size = 0, 1
    if group_size > 1 and layout.context > 1:
        data = layout.data
    elif group_size > 1 and is_hybrid_sharded(layout):
        data = 2 * group_size  # two replicas stand for several
    return job._replace(
        optimizer=optimizer,
        gradient_accumulation_steps=distinct_micro_batches(job),
        initialization=UNREAD,
        checkpoint=UNREAD,
        layout=layout._replace(nodes=UNREAD, gpus_per_node=UNREAD, data=data, zero_stage=stage, shard_group=group_size),
        torch=(torch,),
    )


def distinct_micro_batches(job: TrainingJob) -> int:
    """Return how many micro-batches must be recorded: all later ones repeat earlier ones.

    That is three without a pipeline. A pipeline rank also needs as many as it has in flight, and GPipe needs all.
    """
    layout, steps = job.layout, job.gradient_accumulation_steps
    if layout.pipeline == 1:
        return min(steps, MICRO_BATCHES)
    if job.run_micro_batches < steps:
        return min(steps, 2 * job.run_micro_batches)
    if runs_chunk_by_chunk(job):
        from memcheck.frameworks.torch.interleaved import enough_micro_batches

        return enough_micro_batches(layout, steps)
    return steps if layout.pipeline_schedule == "gpipe" else min(steps, max_in_flight(layout) + MICRO_BATCHES - 1)


def unsharded_step_key(job: TrainingJob) -> TrainingJob:
    """Return a :func:`step_key` job without the size of the sharding group, which only FSDP2's groups depend on."""
    layout = job.layout
    if not uses_fsdp(job) or loss_reduces_head(job) or layout.context > 1:
        return job
    data = 2 * DIVIDED if is_hybrid_sharded(layout) else layout.data  # two replicas stand for several
    return job._replace(layout=layout._replace(shard_group=min(layout.shard_group, DIVIDED), data=data))


class RankUnits(Record):
    """The units that a rank runs, and their parameter tensors."""

    runs: list[Run]
    resident: ResidentTensors
    reduced_by_loss: tuple[str, ...]
    """For each run the name of the tensor whose gradient the loss reduces, or an empty string."""
    parameters: int
    """Number of parameters on the rank, before FSDP divides them."""
    offloaded: int
    """Bytes that a micro-batch sends to the host."""


class TorchRank(RankPeak):
    """A rank of torch's data parallelism, with its units."""

    __slots__ = ("units",)
    step: StepPeaks

    def __init__(self, number: int, step: StepPeaks, known: _RankStep) -> None:
        units = known.units
        super().__init__(number, step, units.resident, known.always, units.parameters, known.host_bytes)
        self.units = units


class TorchStates(RankStates):
    """The resident states of the ranks of a :func:`memcheck.job.keys.state_key` job, and the FSDP groups of each."""

    __slots__ = ("_groups",)

    def __init__(self, job: TrainingJob) -> None:
        super().__init__(job, resident_states)
        self._groups: dict[tuple[ResidentTensors, tuple[str, ...], bool], GroupSizes] = {}

    def groups(self, units: RankUnits, *, rooted: bool) -> GroupSizes:
        """Return the FSDP groups of a rank. ``rooted``: embedding, final norm and head share the root's group."""
        key = (units.resident, units.reduced_by_loss, rooted)
        group_sizes_of_rank = self._groups.get(key)
        if group_sizes_of_rank is None:
            group_sizes_of_rank = self._groups[key] = _rank_groups(self.job, units, rooted=rooted)
        return group_sizes_of_rank


@lru_cache(maxsize=1024)
def states_of(job: TrainingJob) -> TorchStates:
    """The states of a :func:`memcheck.job.keys.state_key` job; equal jobs share them."""
    return TorchStates(job)


class _RankStep(Record):
    """The step of a rank with all that does not depend on the sizes of its FSDP groups."""

    program: RankProgram
    units: RankUnits
    always: tuple[Always, ...]
    host_bytes: int
    has_groups: bool
    """FSDP wraps the model."""
    rooted: bool
    """Embedding, final norm and head share the root's group."""


class Steps:
    """The steps of a job's ranks with the sizes of their units; sizes of FSDP groups are given to :meth:`peak`."""

    __slots__ = ("_architecture", "_job", "_steps", "_units")

    def __init__(self, job: TrainingJob, architecture: Architecture, *, inventory: bool = False) -> None:
        """``job``: a :func:`step_key` one."""
        self._job, self._architecture = job, architecture
        self._units = units_of(unit_key(job), architecture, accumulation(job), inventory)
        self._steps: dict[int, _RankStep] = {}

    def peak(self, rank: int, states: TorchStates) -> TorchRank:
        """Return the step of pipeline rank ``rank`` on top of resident ``states``."""
        rank_step = self._steps.get(rank)
        if rank_step is None:
            rank_step = self._steps[rank] = self._step(rank)
        groups = states.groups(rank_step.units, rooted=rank_step.rooted) if rank_step.has_groups else NO_GROUP_SIZES
        return TorchRank(rank, rank_step.program.peak(groups), rank_step)

    def _step(self, rank: int) -> _RankStep:
        """Build the step of one pipeline rank: its units, what is always live, and a program of allocations.

        Under interleaved schedules the rank has several model chunks, each with its own layers.
        """
        job, architecture = self._job, self._architecture
        part = stage_parts(architecture.num_layers, job.layout.pipeline, job.layout.fewer_layers)[rank]
        layers_of_rank: tuple[Part, ...] = (part,)
        chunked = runs_chunk_by_chunk(job)
        if chunked:
            from memcheck.frameworks.torch.interleaved import chunk_parts

            layers_of_rank = chunk_parts(architecture.num_layers, job.layout, rank)
            part = Part(
                first_layer=part.first_layer,
                end_layer=part.first_layer + sum(chunk.end_layer - chunk.first_layer for chunk in layers_of_rank),
                has_embedding=any(chunk.has_embedding for chunk in layers_of_rank),
                has_head=any(chunk.has_head for chunk in layers_of_rank),
            )
        units = _rank_units(self._units, layers_of_rank)
        buffers = ModelBuffers(job, checked_architecture(job, architecture), part, self._units.base)
        options, own_sizes, others_in_flight = step_options(job, rank, buffers.exchange, units.resident)
        always = tuple(buffers.always())
        if chunked:
            from memcheck.frameworks.torch.interleaved import chunked_step, kept_input_gradients

            always += kept_input_gradients(job, rank, buffers)
            schedule, sizes = chunked_step(job, self._units, options.schedule, layers_of_rank, rank)
            options = options._replace(schedule=schedule)
        else:
            sizes = [step_sizes(job, units.runs, buffers, others_in_flight)]
        host_bytes = int(units.offloaded * in_flight(rank, job.layout, job.run_micro_batches))
        return _RankStep(
            program=RankProgram(options, _run_sizes(self._units, layers_of_rank), outside_sizes(sizes, own_sizes)),
            units=units,
            always=always,
            host_bytes=host_bytes,
            has_groups=uses_fsdp(job),
            rooted=ends_stay_gathered(job),
        )


def unit_key(job: TrainingJob) -> TrainingJob:
    """Return the job without the settings that do not affect its units; equal results share them.

    What a unit depends on in addition is in :class:`Accumulation`.
    """
    layout = job.layout
    unit_layout = Layout(
        tensor=layout.tensor,
        sequence=layout.sequence,
        context=layout.context,
        expert=layout.expert,
        expert_tensor=layout.expert_tensor,
    )
    if loss_reduces_head(job) or (job.objective.forward_only_pass and (uses_fsdp(job) or is_zero3(job))):
        unit_layout = unit_layout._replace(zero_stage=layout.zero_stage, shard_group=layout.shard_group)
    freeze = job.freeze
    if freeze and uses_flat_parameters(job):
        from memcheck.frameworks.torch.flat_shard import effective_freeze

        freeze = effective_freeze(job)
    mixes = mixes_adapters(job)
    if mixes:
        from memcheck.frameworks.torch.flat_shard import frozen_ends

        freeze = frozen_ends(job)
    return job._replace(
        freeze=freeze,
        flat_param_gradients=mixes,
        layout=unit_layout,
        optimizer=job.optimizer if job.optimizer.in_backward else AFTER_BACKWARD,
        gradient_accumulation_steps=UNREAD,
        parameter_offload=UNREAD,
        initialization=UNREAD,
        checkpoint=UNREAD,
        torch=UNREAD,
    )


@lru_cache(maxsize=2048)
def _rank_units(units: Units, held_parts: tuple[Part, ...]) -> RankUnits:
    """Return the units of all parts of the model that a rank holds, with the number of its parameters.

    ``held_parts``: layers and ends of the rank. Equal tuples of tensors become one object: FSDP groups are shared by
    its identity.
    """
    runs = list(chain.from_iterable(units.runs(part) for part in held_parts))
    resident = interned([(run.unit.tensors, run.times) for run in runs])
    shared: list[Run] = []
    parameters = offloaded = 0
    tensors: Any
    for run, (tensors, _) in zip(runs, resident.runs, strict=True):
        unit = run.unit if run.unit.tensors is tensors else run.unit._replace(tensors=tensors)
        shared.append(run if unit is run.unit else run._replace(unit=unit))
        parameters += run.times * sum(t.numel for t in tensors)
        offloaded += run.times * unit.offloaded_bytes
    return RankUnits(shared, resident, tuple([run.unit.reduced_by_loss for run in runs]), parameters, offloaded)


@lru_cache(maxsize=2048)
def _run_sizes(units: Units, parts: tuple[Part, ...]) -> RunSizes:
    return run_sizes(_rank_units(units, parts).runs, parts[0].first_layer if len(parts) == 1 else 0)


class _Wrapping(Record):
    """Which modules of a rank FSDP wraps."""

    kinds: tuple[str, ...]
    """Kinds of units that are wrapped."""
    modules: dict[str, tuple[str, ...]]
    """By kind of a tower's unit: how names of tensors in modules begin that are wrapped instead of the whole unit."""
    has_root: bool
    """The rank has a root group, which holds all tensors that are not wrapped."""
    root_trains: bool
    """The root group has a trained tensor."""


class _SplitUnit(Record):
    """The FSDP groups of one unit."""

    groups: UnitGroups
    share_of_root: Group
    """What the unit adds to the root's group, if it is in that group at all."""


def _rank_groups(job: TrainingJob, units: RankUnits, *, rooted: bool) -> GroupSizes:
    """Return the sizes in bytes of the FSDP groups of a rank: one group per wrapped unit, and the root's.

    ``rooted``: the rank has a root group. It is the sum of the units that are not wrapped, and of the parts of wrapped
    units that belong to it.
    """
    vision = job.architecture.vision if isinstance(job.architecture, Architecture) else None
    own_modules: dict[str, tuple[str, ...]] = {}
    if vision is not None:
        from memcheck.frameworks.torch.tower_tensors import own_parts

        own_modules = own_parts(job, vision)
    kinds = wrapped_kinds(job)
    in_root = [run.unit.kind not in kinds or run.unit.kind in own_modules for run in units.runs]
    resident: Any = [tensors for tensors, _ in units.resident.runs]
    root_trains = rooted and any(
        is_in_root and any(t.trained for t in tensors) for is_in_root, tensors in zip(in_root, resident, strict=True)
    )
    wrapping = _Wrapping(kinds=kinds, modules=own_modules, has_root=rooted, root_trains=root_trains)
    # equal layers share one tuple of tensors, and so their groups' sizes
    split_by_tensors: dict[int, _SplitUnit] = {}
    unit_groups: list[UnitGroups] = []
    root = NO_GROUP
    for run, reduced, is_in_root, tensors in zip(units.runs, units.reduced_by_loss, in_root, resident, strict=True):
        if id(tensors) not in split_by_tensors or reduced:
            split = _split_unit(job, run.unit.kind, tensors, wrapping)
            if reduced:
                split = _reduced_by_loss(job, split, tensors, reduced, first_tensors=resident[0])
            split_by_tensors[id(tensors)] = split
        split = split_by_tensors[id(tensors)]
        unit_groups.append(split.groups)
        if rooted and is_in_root:
            share = split.share_of_root
            summed = Group(*(total + run.times * size for total, size in zip(root, share, strict=True)))
            root = summed._replace(
                last_unsharded_gradient=share.last_unsharded_gradient or root.last_unsharded_gradient
            )
    return group_sizes(unit_groups, root)


def _split_unit(job: TrainingJob, kind: str, tensors: tuple[LocalTensor, ...], wrapping: _Wrapping) -> _SplitUnit:
    """Return the FSDP groups of a unit of this kind, without what the loss reduces."""
    whole = group_of(job, tensors, joins_trained=wrapping.root_trains and kind not in wrapping.kinds)
    has_adapter_groups = has_adapter_units(job)
    if (has_adapter_groups or ends_have_own_groups(job)) and kind not in (*wrapping.kinds, *wrapping.modules):
        # adapters that are wrapped by themselves, or ends with groups of their own, are not in the root's group
        own_group = [t for t in tensors if (t.trained if has_adapter_groups else is_in_end_group(t))]
        share = group_of(job, tuple([t for t in tensors if t not in own_group]))
        return _SplitUnit(UnitGroups(group_of(job, tuple(own_group))), share)
    split = _SplitUnit(UnitGroups(whole), whole)
    if kind in wrapping.modules and wrapping.has_root:
        split = split_groups(job, tensors, wrapping.modules[kind], root_trained=wrapping.root_trains)
    if kind in NEVER_GATHERED and kind in (*wrapping.kinds, *wrapping.modules):
        split = split._replace(groups=NO_UNIT_GROUPS)
    return split


def _reduced_by_loss(
    job: TrainingJob,
    split: _SplitUnit,
    tensors: tuple[LocalTensor, ...],
    name: str,
    first_tensors: tuple[LocalTensor, ...],
) -> _SplitUnit:
    """Return the groups of a unit of which the loss itself reduces the gradient of the tensor ``name``.

    ``tensors``: the unit's. ``first_tensors``: those of the rank's first unit, the embedding, whose matrix a tied head
    uses.
    """
    is_own = any(t.name == name for t in tensors)
    owners = tensors if is_own else first_tensors
    groups = UnitGroups(
        split.groups.whole,
        reduced_by_loss=group_of(job, tuple([t for t in owners if t.name == name])),
        reduced_by_hook=group_of(job, tuple([t for t in tensors if t.name != name])),
    )
    share = split.share_of_root
    if is_own:  # its own table, which the loss alone reduces
        share = share._replace(**{field: getattr(groups.reduced_by_hook, field) for field in GRADIENT_FIELDS})
    return _SplitUnit(groups, share)


def group_of(job: TrainingJob, tensors: tuple[LocalTensor, ...], *, joins_trained: bool = False) -> Group:
    """Return the FSDP group of some tensors, with its sizes in bytes on one rank.

    ``joins_trained``: FSDP1 flattens them together with tensors that are trained.

    Raises:
        UnsupportedError: the framework leaves experts of another dtype than the compute dtype to a single rank.
    """
    ranks = job.layout.shard_group
    if uses_flat_parameters(job):
        from memcheck.frameworks.torch.flat_shard import flat_parameter_group

        includes_frozen = not has_adapter_units(job) and (joins_trained or any(t.trained for t in tensors))
        return flat_parameter_group(
            tensors,
            job.recipe,
            ranks,
            casts_every_tensor=all_gather_dtype(job) is not None,
            includes_frozen=includes_frozen,
        )
    sharded = [shard_placement(job, t, ranks) for t in tensors]
    recipe = job.recipe
    leaves_whole_experts = job.framework.fsdp2.leaves_whole_experts
    has_whole_experts = any(t.expert and shards == 1 for t, shards in sharded)
    if leaves_whole_experts and has_whole_experts and recipe.params != recipe.compute:
        message = f"experts of {recipe.params} that FSDP2 leaves alone are cast in every layer, which has no model here"
        help = "divide them over fewer ranks (parallelism.expert), or choose training.precision: bf16-pure"
        raise UnsupportedError(message, help, "/training/precision")
    sizes = fsdp_group(
        sharded,
        recipe,
        casts_every_tensor=all_gather_dtype(job) is not None,
        accumulation_dtype=recipe.compute if job.fsdp_version == 1 else recipe.reduce,
        leaves_whole_experts=leaves_whole_experts,
        reduces_accumulated=accumulates_unsharded(job),
        divides_gradients=job.framework.fsdp2.divides_gradients,
    )
    return sizes._replace(last_unsharded_gradient=0) if job.fsdp_version == 1 or ranks == 1 else sizes


def split_groups(
    job: TrainingJob, tensors: tuple[LocalTensor, ...], own_names: tuple[str, ...], *, root_trained: bool
) -> _SplitUnit:
    """Split a unit into the group of its wrapped modules and the share of the root's group.

    ``own_names``: how names of tensors in wrapped modules begin. The gradients of the root's share are a size of the
    unit's groups, too, because the unit's backward allocates them.
    """
    wrapped_tensors = tuple([t for t in tensors if t.name.startswith(own_names)])
    root_tensors = tuple([t for t in tensors if t not in wrapped_tensors])
    root_gradients = group_of(job, tuple([t for t in root_tensors if t.trained]))
    share_of_root = NO_GROUP._replace(unsharded_gradients=root_gradients.unsharded_params)  # in the compute dtype
    unit_groups = UnitGroups(group_of(job, wrapped_tensors), share_of_root=share_of_root)
    return _SplitUnit(unit_groups, group_of(job, root_tensors, joins_trained=root_trained))
