"""What data parallelism does around the units of a step: hooks that the record of a step calls.

A strategy is a record that is part of the key of a recorded step: :class:`memcheck.frameworks.torch.ddp.Replicated`,
:class:`memcheck.frameworks.torch.fully_shard.FullyShard`, :class:`memcheck.frameworks.torch.flat_shard.FlatShard` and
DeepSpeed's engine, :class:`memcheck.frameworks.deepspeed.step.ZeroEngine`. It makes the hooks of one step.

FSDP2's parameter groups: what they gather, reduce and keep.

Source: torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py. Each tensor is cut
along dim 0 and padded to a multiple of the ranks; a group gathers into one flat buffer, copies out into full parameters
and reduces gradients through one flat input in the reduce dtype.

What FSDP casts for the root's forward.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import Amount, Blocks, NamedCurve, Recorder, layer_groups
from memcheck.accounts.ranks import NUMBERED
from memcheck.accounts.state import LocalTensor, shard_numel
from memcheck.autograd.tensor import rounded
from memcheck.autograd.weight_formats import is_four_bits
from memcheck.frameworks.torch.pipelining import SPLIT, StageExchange
from memcheck.job.types import DTYPE_BYTES, Layout, Recipe, TrainingJob
from memcheck.job.versions import WRAPS, ends_apart, reduces_wider, wraps_adapters
from memcheck.models.types import Architecture
from memcheck.record import Record

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object


def uses_fsdp(job: TrainingJob) -> bool:
    """Say whether FSDP2 wraps the model: it shards it, or casts it on one rank."""
    layout, profile = job.layout, job.framework
    if profile.has_sharding_engine or layout.zero_stage < 2:
        return False
    return layout.shard_group > 1 or (profile.fsdp2.on_one_rank and layout.zero_stage == 3)


def uses_flat_parameters(job: TrainingJob) -> bool:
    """Return whether FSDP1 flattens each unit's parameters into one tensor. Pipelines are torch's, which only know
    FSDP2.
    """
    return uses_fsdp(job) and job.fsdp_version == 1 and job.layout.shard_group > 1 and job.layout.pipeline == 1


def mixes_adapters(job: TrainingJob) -> bool:
    """Say whether one flat parameter holds a layer's frozen weights and its adapters.

    A flat parameter wants a gradient if one of its tensors does, and then every tensor in it gets one (torch 2.13
    distributed/fsdp/_flat_param.py, ``FlatParamHandle._init_flat_param_and_metadata``; _wrap_utils.py,
    ``_validate_frozen_params`` warns of it). The optimizer still steps on adapters alone.
    """
    if job.lora is None or not uses_flat_parameters(job):
        return False
    return not wraps_adapters(job.framework, job.framework_version, job.option(WRAPS))


def has_adapter_units(job: TrainingJob) -> bool:
    """Return whether FSDP1 wraps trained modules inside frozen layers, such as adapters, as units of their own."""
    return job.lora is not None and uses_flat_parameters(job) and not mixes_adapters(job)


def autocast_dtype(job: TrainingJob) -> str | None:
    """Return the dtype of ``torch.autocast`` around the model's forward; None without autocast.

    It comes from the recipe, or from accelerate and Lightning Fabric around FSDP1, whose policy casts what it gathers.
    They use none around FSDP2 (accelerate 1.15 accelerator.py, ``prepare_model``;
    lightning/fabric/plugins/precision/fsdp.py, ``forward_context``).
    """
    profile = job.framework
    flat = job.fsdp_version == 1 and (profile.copies_outputs_to_fp32 or profile.always_uses_fsdp1)
    around = job.recipe.autocast or (flat and casts_parameters(job))
    return job.recipe.compute if around else None


def casts_parameters(job: TrainingJob) -> bool:
    """Whether FSDP gathers parameters in the dtype of the products, whichever they rest in."""
    return not job.recipe.autocast and job.recipe.recipe.endswith("-mixed")


def runs_chunk_by_chunk(job: TrainingJob) -> bool:
    """Return whether the step records each pipeline chunk of a rank apart.

    A schedule that splits the backward needs it, and so do several chunks that FSDP2 wraps under an interleaved
    schedule.
    """
    layout = job.layout
    if layout.pipeline == 1 or layout.pipeline_schedule in SPLIT:
        return layout.pipeline > 1
    has_interleaved_chunks = layout.virtual_stages > 1 and layout.pipeline_schedule == "interleaved-1f1b"
    return has_interleaved_chunks and uses_fsdp(job) and job.fsdp_version == 2


def is_hybrid_sharded(layout: Layout) -> bool:
    """Return whether several groups of ranks each hold all shards (HSDP), so that gradients are all-reduced across
    groups.
    """
    return layout.shard_group < layout.data * layout.context


def all_gather_dtype(job: TrainingJob) -> str | None:
    """Return the dtype in which FSDP gathers everything that it wraps (``MixedPrecision(param_dtype)``); None: each
    tensor in its own.
    """
    return job.recipe.compute if casts_parameters(job) and not job.framework.has_sharding_engine else None


def is_zero3(job: TrainingJob) -> bool:
    """Whether ZeRO-3 divides parameters; those of a reference, too (TRL ``models/utils.py``, ``prepare_deepspeed``)."""
    return job.framework.has_sharding_engine and job.layout.zero_stage == 3


def accumulates_unsharded(job: TrainingJob) -> bool:
    """Say whether micro-batches before the last leave their gradients unsharded.

    torch.distributed.pipelining always reduces with the last one only (stage.py, backward_maybe_with_nosync).
    """
    delayed = job.layout.gradient_sync == "last" or job.layout.pipeline > 1
    return uses_fsdp(job) and job.run_micro_batches > 1 and delayed


def autograd_gradient_dtype(job: TrainingJob) -> str | None:
    """Return the dtype to which autograd itself casts gradients that are accumulated until a reduction; None without a
    cast.

    Since torch 2.15 autograd does so by ``grad_dtype`` (_set_unsharded_grad_dtypes). Before, post_backward copies them.
    """
    if job.fsdp_version == 2 and job.casts_gradients and accumulates_unsharded(job) and reduces_wider(job.recipe):
        return job.recipe.reduce
    return None


def loss_reduces_head(job: TrainingJob) -> bool:
    """Whether the loss itself reduces the head's gradient."""
    return job.framework.fsdp2.loss_reduces_head and job.loss.kind == "chunked"


def ends_share_group(job: TrainingJob) -> bool:
    """Say whether embedding, final norm and head share a group, which the framework wraps apart: they share a matrix.

    torchtitan/distributed/fsdp.py (``enable_weight_tying``), whatever the tensor-parallel degree; accelerate 1.14
    utils/fsdp_utils.py (``is_weights_tied``), whose group of norm and head is gathered by the first of both that runs:
    in front of the layers, where the embedding is normalised by the same module.
    """
    architecture = job.architecture
    if not (uses_fsdp(job) and isinstance(architecture, Architecture) and architecture.head):
        return False
    embedding_reads_final_norm = (
        architecture.embedding_norm is not None
        and architecture.final_norm is not None
        and architecture.embedding_norm.name == architecture.final_norm.name
    )
    if job.groups_embedding_and_head:
        return architecture.tie_word_embeddings or embedding_reads_final_norm
    return job.framework.fsdp2.groups_of_ends and architecture.tie_word_embeddings


def ends_stay_gathered(job: TrainingJob) -> bool:
    """Return whether embedding, final norm and head are in the root's group, which stays gathered all step."""
    return uses_fsdp(job) and (
        ends_share_group(job) or job.groups_embedding_and_head or not ends_apart(job, job.framework)
    )


def ends_have_own_groups(job: TrainingJob) -> bool:
    """Return whether the embedding is an FSDP2 group, and final norm and head another.

    The root's group then has what is left outside layers.
    """
    return uses_fsdp(job) and job.groups_embedding_and_head and not ends_share_group(job)


def is_in_end_group(tensor: LocalTensor) -> bool:
    """Return whether Accelerate wraps a tensor as embedding, or as final norm and head.

    It finds them by ``get_input_embeddings``, ``_find_final_norm`` and ``get_output_embeddings``, which is the last
    matrix of a head that has several.
    """
    return tensor.name.startswith(("embed_tokens.", "final_norm", "lm_head")) and ".dense." not in tensor.name


def outside_gradient_dtype(job: TrainingJob) -> str | None:
    """Return the dtype to which autograd casts gradients of the root's weights that are used outside of its forward.

    A chunked loss uses the head's. Their gradients come before the root's pre-backward hook has put off the cast.
    """
    is_used_outside = job.loss.kind == "chunked" and not loss_reduces_head(job)
    casts_to_reduce_dtype = job.casts_gradients and uses_fsdp(job) and reduces_wider(job.recipe)
    return job.recipe.reduce if is_used_outside and casts_to_reduce_dtype else None


def adds_in_place(job: TrainingJob) -> bool:
    """Say whether later micro-batches find unsharded gradients in ``.grad``, and autograd adds to them.

    FSDP1 leaves them in the flat parameter's ``.grad``, in the dtype in which they are computed
    (torch/distributed/fsdp/_runtime_utils.py, _post_backward_hook).
    """
    return accumulates_unsharded(job) and (
        job.fsdp_version == 1 or job.casts_gradients or not reduces_wider(job.recipe)
    )


class Group(Record):
    """Bytes on one rank of one ``fully_shard`` parameter group (``FSDPParamGroup``), or of one FSDP1 flat parameter.

    While a step is recorded the fields hold indices of sizes instead (:mod:`memcheck.accounts.program`).
    """

    all_gather_output: int
    """Output of the all-gather (``all_gather_output``), from which the parameters are copied out."""
    unsharded_params: int
    """The unsharded parameters after copy-out (``unsharded_param``)."""
    reduce_scatter_input: int
    """Flat input of the reduce-scatter (``reduce_scatter_input``), in the reduce dtype."""
    reduce_scatter_output: int
    """Output of the reduce-scatter, in the reduce dtype: the new sharded gradients are views of it."""
    sharded_gradients: int
    """The sharded gradients (``sharded_param.grad``) in the dtype of the parameters. If that is the reduce dtype,
    they are the reduce-scatter's output itself.
    """
    unsharded_gradients: int
    """Unsharded gradients of micro-batches that do not synchronise (``unsharded_accumulated_grad``)."""
    copy_out_temporaries: int = 0
    """Temporaries of the copy-out: chunks of tensors sharded along another dimension than the first (torch 2.13
    _fsdp_collectives.py, foreach_all_gather_copy_out), and the largest cast of a tensor that a single rank holds
    (_fsdp_param_group.py, wait_for_unshard).
    """
    unmanaged_expert_gradients: int = 0
    """Gradients of experts that one rank holds. FSDP2 does not manage them: they stay as autograd makes them."""
    all_gather_input: int = 0
    """The local shards cast to the all-gather dtype, its input (torch 2.13 _fsdp_collectives.py,
    _get_param_all_gather_inputs); 0 if they are stored in it.
    """
    last_unsharded_gradient: int = 0
    """The unsharded gradient of the last parameter: a loop variable refers to it until the reduction returns (torch
    2.13 _fsdp_collectives.py, foreach_reduce).
    """
    divided_gradients: int = 0
    """Gradients of parameters that one rank holds, divided by the framework's factor: a copy of the reduction's
    input (torch 2.13 _fsdp_collectives.py, foreach_reduce: "For single GPU").
    """


class _GroupedTensor(Record):
    """A parameter of an FSDP2 group, on one rank."""

    tensor: LocalTensor
    ranks: int
    """The ranks over which it is sharded; 1: one rank has all of it."""
    shard: int
    """Elements of the largest shard, to which the others are padded."""
    stored_item: int
    """Bytes of an element as it is stored."""
    gathered_item: int
    """Bytes of an element in the all-gather's output."""

    @property
    def padded(self) -> int:
        """Elements of all shards together."""
        return self.shard * self.ranks

    @property
    def unsharded_bytes(self) -> int:
        """Bytes of the unsharded parameter."""
        return rounded(self.padded * self.gathered_item)

    @property
    def is_cast(self) -> bool:
        """Whether it is gathered in another dtype than it is stored in."""
        return self.gathered_item != self.stored_item


def _grouped(tensor: LocalTensor, ranks: int, recipe: Recipe, *, casts_every_tensor: bool) -> _GroupedTensor:
    """Return a parameter with its sizes. ``casts_every_tensor``: also one with a dtype of its own is cast."""
    shard = shard_numel(tensor, ranks)
    if is_four_bits(tensor.dtype):  # bitsandbytes packs its weights into bytes, which are never cast
        return _GroupedTensor(tensor=tensor, ranks=ranks, shard=shard, stored_item=1, gathered_item=1)
    stored_item = DTYPE_BYTES[tensor.dtype or recipe.params]
    gathered_item = DTYPE_BYTES[recipe.compute] if tensor.dtype is None or casts_every_tensor else stored_item
    return _GroupedTensor(tensor=tensor, ranks=ranks, shard=shard, stored_item=stored_item, gathered_item=gathered_item)


def fsdp_group(
    tensors: list[tuple[LocalTensor, int]],
    recipe: Recipe,
    *,
    casts_every_tensor: bool,
    accumulation_dtype: str,
    leaves_whole_experts: bool = False,
    reduces_accumulated: bool = False,
    divides_gradients: bool = False,
) -> Group:
    """Return the sizes in bytes of one FSDP2 parameter group on one rank.

    ``tensors``: each parameter with the number of ranks over which it is sharded; 1 = one rank has all of it.
    ``casts_every_tensor``: tensors with a dtype of their own are all-gathered in the recipe's dtype, too.
    ``accumulation_dtype``: dtype of unsharded gradients that are accumulated until a reduction.
    ``leaves_whole_experts``: experts that one rank has are not in the group. ``reduces_accumulated``: the reduction
    reads accumulated gradients. ``divides_gradients``: gradients of parameters that one rank has are divided by a
    factor of the framework.
    """
    reduce_item, accumulation_item = DTYPE_BYTES[recipe.reduce], DTYPE_BYTES[accumulation_dtype]
    members, whole_experts = list[_GroupedTensor](), list[_GroupedTensor]()
    for tensor, ranks in tensors:
        member = _grouped(tensor, ranks, recipe, casts_every_tensor=casts_every_tensor)
        is_left_out = leaves_whole_experts and tensor.expert and ranks == 1
        (whole_experts if is_left_out else members).append(member)
    sharded = [m for m in members if m.ranks > 1]
    trained = [m for m in members if m.tensor.trained]
    largest_cast = max((m.unsharded_bytes for m in members if m.ranks == 1 and m.is_cast), default=0)
    divided = [m.padded for m in trained if m.ranks == 1] if divides_gradients else []
    last = 0
    if trained:
        last = trained[-1].tensor.numel * (accumulation_item if reduces_accumulated else trained[-1].gathered_item)
    return Group(
        all_gather_output=rounded(sum(m.padded * m.gathered_item for m in sharded)),
        unsharded_params=sum(m.unsharded_bytes for m in members),
        reduce_scatter_input=rounded(sum(m.padded for m in trained) * reduce_item),
        reduce_scatter_output=rounded(sum(m.shard for m in trained) * reduce_item),
        sharded_gradients=rounded(sum(m.shard * m.stored_item for m in trained)),
        unsharded_gradients=sum(rounded(m.tensor.numel * accumulation_item) for m in trained),
        copy_out_temporaries=sum(m.unsharded_bytes for m in sharded if m.tensor.sharded_dim) + largest_cast,
        unmanaged_expert_gradients=sum(
            rounded(m.tensor.numel * m.stored_item) for m in whole_experts if m.tensor.trained
        ),
        all_gather_input=rounded(sum(m.shard * m.gathered_item for m in sharded if m.is_cast)),
        last_unsharded_gradient=rounded(last),
        divided_gradients=rounded(sum(divided) * reduce_item),
    )


NO_GROUP = Group(
    all_gather_output=0,
    unsharded_params=0,
    reduce_scatter_input=0,
    reduce_scatter_output=0,
    sharded_gradients=0,
    unsharded_gradients=0,
)


def casts_inputs(job: TrainingJob, input_dtype: str) -> bool:
    """Say whether FSDP narrows what the batch brings in this dtype, for the root's forward: ``cast_forward_inputs`` of
    FSDP2, and ``cast_root_forward_inputs`` of FSDP1 (torch/distributed/fsdp).
    """
    dtype = all_gather_dtype(job)
    return dtype is not None and DTYPE_BYTES[dtype] < DTYPE_BYTES[input_dtype]


class NamedUnit(Record):
    """A unit whose curves hold indices of sizes instead of bytes (see :mod:`memcheck.accounts.program`)."""

    kind: str
    """One of the kinds of :class:`memcheck.accounts.ranks.Unit`."""
    name: str
    first_curve: NamedCurve
    """Sizes of the unit in the first micro-batch, whose gradients are new tensors."""
    later_curve: NamedCurve
    """Sizes of the unit in a later micro-batch, whose gradients are added to those that exist."""
    reduced_by_loss: str
    """Name of the tensor whose gradient the loss itself reduces; empty: there is none."""
    frozen_and_recomputed: bool
    """Whether the unit's own parameters are frozen while its input is saved for a recompute."""


class NamedRun(Record):
    """Consecutive equal units, such as the layers of a decoder."""

    unit: NamedUnit
    times: int
    first_layer: int
    """Number of the first unit, counted from the first layer of the rank."""

    def names(self) -> list[str]:
        """Return the name of each unit, with the number of its layer where there are several."""
        if self.times == 1:
            return [self.unit.name]
        return [f"{NUMBERED[self.unit.kind]} {self.first_layer + i}" for i in range(self.times)]


class UnitGroups(Record):
    """The FSDP groups that one unit's tensors are in."""

    whole: Group
    """The group whose parameters the unit's hooks gather."""
    reduced_by_loss: Group = NO_GROUP
    """The part of ``whole`` whose gradient the loss itself reduces: the head's weight, where a loss runs the head."""
    reduced_by_hook: Group = NO_GROUP
    """The other part, which the unit's post-backward hook reduces; empty unless the loss reduces the first."""
    share_of_root: Group = NO_GROUP
    """Tensors of a tower's layer that are in the root's group. Only ``unsharded_gradients`` is set: the unit's backward
    allocates them, the root's hook reduces them."""


NO_UNIT_GROUPS = UnitGroups(NO_GROUP)


class StepSizes(Record):
    """Bytes that a step allocates outside its units and groups."""

    per_micro_batch: int
    """Bytes of what each micro-batch in flight allocates for itself (rotary tables, masks)."""
    held_by_others: tuple[int, ...]
    """For each recorded micro-batch, what the others in flight hold: what their units saved, and their outputs in the
    stage's cache."""
    exchange: StageExchange
    """What a pipeline stage exchanges with its neighbours."""
    table_gradient: int
    """The gradient of a whole embedding table, which a tensor-parallel rank allocates."""
    table_gradient_slice: int
    """The rows of ``table_gradient`` that this rank owns."""
    masks: int = 0
    """Attention masks that live while the model's forward runs."""
    embedded_rows: int = 0
    """Looked-up rows that wait for the image tokens of a vision tower, where nothing has saved them."""
    embedded_rows_gradient: int = 0
    """Bytes of the gradient of the looked-up rows, which is kept until the backward of the tower is over."""
    feature_hidden_states: int = 0
    """Last hidden states of a batch's other columns, which the trainer's features hold until the loss is computed."""


class StepUnits:
    """The units of a rank in forward order, with the FSDP groups of each and of the root.

    ``groups``: one entry per run. ``root``: the group that embedding, final norm and head share, if they share one.
    ``step_sizes``: what the step allocates outside its units.
    """

    __slots__ = ("groups", "layer_groups", "names", "root", "step_sizes", "units")

    def __init__(
        self, runs: Sequence[NamedRun], groups: Sequence[UnitGroups], root: Group, step_sizes: StepSizes
    ) -> None:
        """Expand ``runs``, equal units in a row, to one entry per unit."""
        self.root, self.step_sizes = root, step_sizes
        self.layer_groups = layer_groups([run.times for run in runs])
        self.units: list[NamedUnit] = []
        self.names: list[str] = []
        self.groups: list[UnitGroups] = []
        for run, unit_groups in zip(runs, groups, strict=True):
            self.units += [run.unit] * run.times
            self.names += run.names()
            self.groups += [unit_groups] * run.times


class MicroBatch(Record):
    """A micro-batch that is recorded, because it differs from those before it."""

    is_first: bool
    """The first micro-batch of the step: no gradients exist before it."""
    is_last: bool
    """The last micro-batch of the step, which reduces gradients if earlier ones did not synchronise."""
    outputs_in_transfer: int
    """Number of other micro-batches whose outputs may still be in transfer to the next stage."""


FIRST_OF_PAIR, SECOND_OF_PAIR = 1, 2


class DataParallel:
    """The hooks of one step on a single GPU: every gradient is a new tensor, or is added to one.

    DDP, FSDP and DeepSpeed override the hooks at which they allocate or free memory.

    ``pair``: whether this pass is the first of two whose gradients autograd adds up before any hook runs, the second
    of them, or neither (0).
    """

    hooks_gradients = False
    """Whether hooks reduce the gradients of a unit after its backward."""
    gathered_by_first = False
    """Whether the parameters that this pass needs are gathered already."""
    pair = 0
    pair_before = False
    """Whether a pair of passes came before in this step."""

    def __init__(self, recorder: Recorder, step_units: StepUnits) -> None:
        self.recorder, self.step_units = recorder, step_units
        self.units, self.names = step_units.units, step_units.names

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return the curve of a unit. ``first``: in the first micro-batch, whose gradients are new tensors."""
        return unit.first_curve if first else unit.later_curve

    def curve_of_second(self, unit: NamedUnit) -> NamedCurve:
        """Return the curve of a unit in the second pass of a pair."""
        return unit.later_curve

    def frees_first_gradients(self, pair_before: bool) -> bool:
        """Return whether the first pass's pending gradients are freed once the second pass has its own.

        ``pair_before``: an earlier pair of this step has left gradients, to which the sum is added in place. Without
        one, the first pass's gradients themselves become ``.grad``.
        """
        return pair_before

    def before_step(self) -> None:
        """Record the moment between two steps."""
        self.recorder.mark("init", "states at rest")

    def begin_step(self) -> None:
        """Called before the first micro-batch."""

    def begin_micro_batch(self, micro_batch: MicroBatch, *, others: bool) -> None:
        """Called before a micro-batch. ``others``: further ones are in flight."""

    def before_inputs(self) -> None:
        """Called once the inputs of the micro-batch exist."""

    def begin_forward(self, *, already_gathered: bool) -> None:
        """Called before the model's forward. ``already_gathered``: an earlier one has left the parameters gathered."""

    def before_forward(self, i: int) -> None:
        """Called before the forward of unit ``i``."""

    def before_norm(self) -> None:
        """Called after the layers, before the final norm, the head and the loss."""

    def before_loss(self, *, after_model: bool) -> None:
        """Called after the final norm. ``after_model``: the model's forward has returned before the loss."""

    def after_forward(self, i: int, end: int) -> None:
        """Called after the forward of unit ``i``, which is equal to all units up to ``end``."""

    def end_forward(self) -> None:
        """Called once the model's forward has returned and the loss is computed."""

    def begin_backward(self, micro_batch: MicroBatch, *, all_forwards_first: bool) -> None:
        """Called before the backward. ``all_forwards_first``: every forward of the step came before."""

    def before_backward(self, i: int, curve: NamedCurve) -> None:
        """Called once the gradient of unit ``i``'s output exists."""

    def unit_gradients(self, i: int, curve: NamedCurve) -> Amount:
        """Return the gradients that the backward of unit ``i`` has allocated."""
        return (Blocks(curve.gradient_bytes),)

    def after_backward(self, i: int, end: int, curve: NamedCurve, gradients: Amount) -> None:
        """Called after the backward of units ``i`` to ``end`` - 1. ``gradients``: what :meth:`unit_gradients`
        returned.
        """
        if self.units[i].kind == "head":
            self.recorder.mark("backward", f"all-gather after {self.names[i]}")

    def after_layers(self) -> None:
        """Called after the backward of every unit."""

    def end_backward(self) -> None:
        """Called after the backward, that of the weights included."""

    def after_end(self) -> None:
        """Called after the moment at the end of the backward."""

    def end_micro_batch(self, first: bool, last: bool) -> None:
        """Called after the micro-batch."""

    def hold_gathered(self, sign: int) -> None:
        """Record the parameters of all units, while another chunk of the rank runs. ``sign``: 1 holds them, -1 frees
        them.
        """


class Strategy(Protocol):
    """How data parallelism runs a step, without sizes. Two equal strategies record the same step."""

    def __hash__(self) -> int:
        """Return the strategy's part of the key of a recorded step."""

    @property
    def sizes(self) -> int:
        """Number of sizes that the hooks have in addition to those of units and groups."""

    def hooks(self, recorder: Recorder, step_units: StepUnits, first: int) -> DataParallel:
        """Return the hooks of one step. ``first``: the index of the first of their own sizes."""
