"""FSDP1: each unit's parameters are one flat tensor, which is what is cut, gathered and reduced.

FSDP2's hooks around a loss that runs the head chunk by chunk and reduces the head's gradient itself.

Source: torchtitan components/loss.py, ChunkedLossWrapper; torch 2.13 _fsdp_param_group.py, post_backward.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from memcheck.accounts.program import NOTHING, Amount, Blocks, NamedCurve, Recorder
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import is_frozen
from memcheck.autograd.tensor import ceil_div, round_up, rounded
from memcheck.autograd.weight_formats import is_four_bits
from memcheck.frameworks.torch.data_parallel import (
    NO_GROUP,
    SECOND_OF_PAIR,
    Group,
    MicroBatch,
    NamedUnit,
    StepUnits,
    has_adapter_units,
    mixes_adapters,
)
from memcheck.frameworks.torch.fully_shard import BUFFERS, ROOT, FullyShard, FullyShardHooks
from memcheck.frameworks.torch.rank_tensors import LAYERS, is_head_frozen, is_table_frozen
from memcheck.frameworks.torch.tower_tensors import flattened_parts, model_tensors
from memcheck.job.types import DTYPE_BYTES, Recipe, TrainingJob
from memcheck.models.types import Architecture, is_saved
from memcheck.record import Record


class FlatShard(Record):
    """The settings of FSDP1 that decide what a step gathers, reduces and keeps."""

    shard: FullyShard
    """What FSDP1 and FSDP2 have in common."""
    has_adapter_units: bool
    """Trained modules inside frozen ones are units of their own (peft ``fsdp_auto_wrap_policy``)."""
    reenters: bool
    """Layers are recomputed within a backward of their own."""

    @property
    def sizes(self) -> int:
        """No sizes but those of groups."""
        return 0

    def hooks(self, recorder: Recorder, step_units: StepUnits, first: int) -> FlatShardHooks:
        """The hooks of one step."""
        return FlatShardHooks(recorder, step_units, self)


class FlatShardHooks(FullyShardHooks):
    """FSDP1's hooks, which free the cast shard once the parameter is gathered."""

    def __init__(self, recorder: Recorder, step_units: StepUnits, options: FlatShard) -> None:
        self.has_adapter_units, self.reenters = options.has_adapter_units, options.reenters
        super().__init__(recorder, step_units, options.shard._replace(loss_inside_root=True))

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return the curve with new gradients: autograd makes new views of the flat gradient in every backward."""
        return unit.first_curve

    def curve_of_second(self, unit: NamedUnit) -> NamedCurve:
        """The second pass's gradients are views of a flat gradient of its own."""
        return unit.first_curve

    def before_step(self) -> None:
        """Record the moment between two steps, where the flat gradients of the previous step are still alive.

        No parameter refers to them, and the next forward frees them (torch 2.13 _flat_param.py,
        _reset_flat_param_grad_info_if_needed).
        """
        before = self.recorder.here
        if not self.options.offloads_gradients:
            for i, end in self.layer_groups:
                self.recorder.hold("gradients", self.unit_groups[i].sharded_gradients, end - i)
            self.recorder.hold("gradients", self.root.sharded_gradients)
            self.recorder.mark("forward", "states at rest")
        super().before_step()
        self.recorder.undo_since(before)

    def begin_backward(self, micro_batch: MicroBatch, *, all_forwards_first: bool) -> None:
        """Set the state of a backward. FSDP1's hook is AccumulateGrad's, which runs once for both passes of a pair."""
        super().begin_backward(micro_batch, all_forwards_first=all_forwards_first)
        if self.pair == SECOND_OF_PAIR and not self.options.no_sync:
            self.reduces_now, self.keeps_parameters = True, False

    def gather_root(self) -> int:
        """Gather the root's flat parameter; return NOTHING, because no other buffer stays allocated."""
        self._gather(self.root, "forward", ROOT)
        return NOTHING

    def gather_for_forward(self, group: Group, previous: int, name: str) -> int:
        """Gather the unit's flat parameter; return NOTHING, because no other buffer stays allocated."""
        self._gather(group, "forward", name)
        return NOTHING

    def gather_for_backward(self, group: Group, prefetched: int, name: str) -> None:
        """Gather the unit's flat parameter unless it was gathered ahead."""
        if not prefetched:
            self._gather(group, "backward", name)

    def gather_ahead(self, group: Group, name: str, instant: str) -> int:
        """Gather the flat parameter of the next unit ahead, and return it."""
        self._gather(group, instant, name)
        return group.unsharded_params

    def still_gathered(self, after: Group) -> int:
        """Return the parameters of a frozen unit that are still gathered when the next unit's are gathered.

        A frozen unit is resharded once the gradient of its input exists, after the hook that gathers the next units
        (_runtime_utils.py, _register_post_backward_reshard_only_hook). NOTHING for a trained unit.
        """
        return NOTHING if after.reduce_scatter_output else after.unsharded_params

    def _gather(self, group: Group, instant: str, name: str) -> None:
        """All-gather the group's flat parameter; its input is freed once the gathered one exists."""
        self.recorder.hold(BUFFERS, group.all_gather_output)
        self.recorder.hold(BUFFERS, group.unsharded_params)
        self.recorder.mark(instant, f"all-gather of {name}")
        self.recorder.release(BUFFERS, group.all_gather_output)

    def held_by_hook(self, unit: NamedUnit, curve: NamedCurve) -> Amount:
        """Return what is alive only because a unit's post-backward hook runs.

        The backward of a reentrant checkpoint holds its detached input, its output and the gradients of both (torch
        2.13 utils/checkpoint.py, CheckpointFunction.backward). Any other unit has the gradient of its input.
        """
        if not (self.reenters and unit.kind == "block"):
            return super().held_by_hook(unit, curve)
        return (Blocks(unit.first_curve.input_bytes, 2), Blocks(unit.first_curve.output_gradient_bytes, 2))

    def flatten_gradients(self, group: Group, unsharded: Amount, name: str) -> Amount:
        """Replace the gradients of the views by the gradient of the flat parameter, which is then reduced.

        The backward of the split into views concatenates them. In the second pass of a pair the flat gradient is added
        in place to the pending one of the first.
        """
        self.recorder.hold("gradients", group.unsharded_gradients)
        self.recorder.mark("backward", f"flat gradient of {name}")
        self.recorder.release_amount("gradients", unsharded)
        self.recorder.release("gradients", group.unsharded_gradients if self.pair == SECOND_OF_PAIR else NOTHING)
        return ()

    def reduce(self, group: Group, unsharded: Amount, previous: int, last: bool, name: str) -> int:
        """Reduce-scatter the flat gradient of one group; return NOTHING, because no buffer outlives the hook.

        The hook's variables hold the flat gradient, in its own and in the reduce dtype, until the shard is stored.
        """
        recorder, delayed = self.recorder, self.options.no_sync
        # added in place to the earlier flat gradient, once the hook is over
        added = group.unsharded_gradients if delayed and not self.gradients_are_new else NOTHING
        if delayed and not last:
            recorder.release("gradients", added)
            return NOTHING
        recorder.hold(BUFFERS, group.reduce_scatter_input)
        recorder.mark("backward", f"reduce-scatter of {name}")
        recorder.hold("gradients", group.reduce_scatter_output)
        recorder.mark("backward", f"reduce-scatter of {name}")
        if group.sharded_gradients != group.reduce_scatter_output:  # _cast_grad_to_param_dtype
            recorder.hold("gradients", group.sharded_gradients)
            recorder.mark("backward", f"gradients of {name} in the shards' dtype")
            recorder.release("gradients", group.reduce_scatter_output)
        adds_in_place = not (self.gradients_are_new or delayed)  # to _saved_grad_shard
        if self.options.offloads_gradients or adds_in_place:
            recorder.release("gradients", group.sharded_gradients)
        recorder.release(BUFFERS, group.reduce_scatter_input)
        recorder.release("gradients", group.unsharded_gradients)
        recorder.release("gradients", added)
        return NOTHING


ALIGNMENT = 16
"""Bytes to which every parameter begins in the flat tensor (_get_aligned_numel)."""


ENDS = ("embed", "head", "norm")
PARTS = ("language", "vision", "projector", "encoder")
ADAPTERS = (".lora_", ".modules_to_save.")
"""Parts of the names of tensors that peft or LitGPT adds to a frozen model."""
NAMED_ENDS = {"embed_": "embed", "embedding_norm": "embed", "lm_head": "head", "final_norm": "norm"}
"""How names of tensors begin, and the words of ``freeze`` for them."""


def flat_parameter_group(
    tensors: Iterable[LocalTensor], recipe: Recipe, ranks: int, *, casts_every_tensor: bool, includes_frozen: bool
) -> Group:
    """Return the sizes in bytes of one flat parameter of FSDP1, which is divided over ``ranks`` ranks.

    ``casts_every_tensor``: tensors with a dtype of their own are gathered in the recipe's dtype, too.
    ``includes_frozen``: frozen tensors share the flat parameter with trained ones and get a gradient, because all views
    of a flat parameter require one together (_use_unsharded_views). Otherwise trained and frozen tensors are two flat
    parameters (peft ``fsdp_auto_wrap_policy``).
    """
    unit_tensors = tuple(tensors)
    trained = unit_tensors if includes_frozen else tuple(t for t in unit_tensors if t.trained)
    frozen = tuple(t for t in unit_tensors if t not in trained)
    compute_bytes = DTYPE_BYTES[recipe.compute]

    def widest(flat_tensors: tuple[LocalTensor, ...]) -> int:
        """Return the bytes of an element in the one dtype in which FSDP1 all-gathers a flat parameter."""
        gathered_bytes = (_gathered_element_bytes(t, recipe, casts_every_tensor) for t in flat_tensors)
        return max(gathered_bytes, default=compute_bytes)

    cast_shard = gathered = 0
    for flat_tensors in {trained, frozen}:
        numel, element_bytes = flat_parameter_numel(flat_tensors, compute_bytes, ranks), widest(flat_tensors)
        gathered += rounded(numel * element_bytes)
        stored_dtypes = {t.dtype or recipe.params for t in flat_tensors if not is_four_bits(t.dtype)}
        if any(DTYPE_BYTES[dtype] != element_bytes for dtype in stored_dtypes):
            cast_shard += rounded(numel // ranks * element_bytes)
    # only the trained flat parameter has a gradient, which is reduced without a cast where the dtypes agree
    numel, element_bytes = flat_parameter_numel(trained, compute_bytes, ranks), widest(trained)
    stored_bytes = max((DTYPE_BYTES[t.dtype or recipe.params] for t in trained), default=0)
    reduce_bytes = DTYPE_BYTES[recipe.reduce] if casts_every_tensor or element_bytes == compute_bytes else element_bytes
    return Group(
        all_gather_output=cast_shard,
        unsharded_params=gathered,
        reduce_scatter_input=rounded(numel * reduce_bytes) if reduce_bytes != element_bytes else 0,
        reduce_scatter_output=rounded(numel // ranks * reduce_bytes),
        sharded_gradients=rounded(numel // ranks * stored_bytes),
        unsharded_gradients=rounded(numel * element_bytes),
    )


def flat_parameter_numel(tensors: Iterable[LocalTensor], element_bytes: int, ranks: int) -> int:
    """Return the elements of the flat tensor: each parameter is aligned, and the total is a multiple of ``ranks``.

    ``element_bytes``: bytes of an element.
    """
    aligned_elements, total = ALIGNMENT // element_bytes, 0
    for t in tensors:
        total = round_up(total, aligned_elements) + t.numel
    return round_up(total, ranks)


def updated_numel(job: TrainingJob, tensor: LocalTensor, unit: Iterable[LocalTensor]) -> int:
    """Return the number of a tensor's elements that FSDP1's optimizer updates on the fullest rank of its unit.

    A rank holds a contiguous slice of the unit's flat parameter, not a slice of each tensor. If some tensors are
    frozen, the fullest rank's slice may consist of trained elements alone. ``unit``: the tensors of the layer; ignored
    for embedding, norm and head, which share a flat parameter.
    """
    ranks, architecture, unit_tensors = job.layout.shard_group, job.architecture, tuple(unit)
    even_share = ceil_div(tensor.numel, ranks)
    if not isinstance(architecture, Architecture) or not (job.freeze or mixes_adapters(job)):
        return even_share
    if mixes_adapters(job):  # frozen and trained tensors alternate: the result is that of the rank that updates most
        flat_tensors = _tensors_outside_layers(job, architecture) if is_end(tensor) else unit_tensors
        of_tensor = (numels for t, numels in _numel_by_rank(job, flat_tensors) if t.name == tensor.name)
        numel_by_rank = next(of_tensor)
        return numel_by_rank[rank_with_most_updates(job)]
    if is_end(tensor) or tensor.part:
        has_frozen = any(word in ENDS or word in PARTS for word in job.freeze)
        total, stepped = _numel_outside_layers(job._replace(freeze=effective_freeze(job)), architecture, job.freeze)
    else:
        stepped_numels = [t.numel for t in unit_tensors if is_stepped(job, t)]
        has_frozen = len(stepped_numels) < len(unit_tensors)
        total, stepped = sum(t.numel for t in unit_tensors), sum(stepped_numels)
    if not (has_frozen and stepped):
        return even_share
    most_updated = min(ceil_div(total, ranks), stepped)  # a slice that has trained elements alone
    return ceil_div(tensor.numel * most_updated, stepped)


@lru_cache(maxsize=256)
def _numel_outside_layers(job: TrainingJob, architecture: Architecture, freeze: tuple[str, ...]) -> tuple[int, int]:
    """Return the elements of all tensors outside layers, and those of them that the optimizer steps on."""
    ends, stated = _tensors_outside_layers(job, architecture), job._replace(freeze=freeze)
    return sum(t.numel for t in ends), sum(t.numel for t in ends if is_stepped(stated, t))


def _tensors_outside_layers(job: TrainingJob, architecture: Architecture) -> tuple[LocalTensor, ...]:
    """Return the tensors outside layers: embedding, positions, final norm, head, and a tower's stem and projector."""
    return tuple([t for tensors in model_tensors(job, architecture) for t in tensors if is_end(t) or t.part])


@lru_cache(maxsize=256)
def rank_with_most_updates(job: TrainingJob) -> int:
    """Return the rank that updates most elements, where flat parameters mix adapters and frozen weights."""
    architecture, updated_by_rank = job.architecture, [0] * job.layout.shard_group
    assert isinstance(architecture, Architecture)  # noqa: S101 - only such have flat parameters
    ends = _tensors_outside_layers(job, architecture)
    layers = [unit for unit in model_tensors(job, architecture) if not any(map(is_end, unit))]
    unit_counts: dict[int, tuple[tuple[LocalTensor, ...], int]] = {}  # equal layers share one tuple of tensors
    for unit in (ends, *layers):
        _, count = unit_counts.get(id(unit), (unit, 0))
        unit_counts[id(unit)] = (unit, count + 1)
    for unit, count in unit_counts.values():
        for tensor, rank_numels in _numel_by_rank(job, unit):
            if is_stepped(job, tensor):
                for rank, numel in enumerate(rank_numels):
                    updated_by_rank[rank] += count * numel
    return updated_by_rank.index(max(updated_by_rank))


def _numel_by_rank(job: TrainingJob, unit: tuple[LocalTensor, ...]) -> list[tuple[LocalTensor, tuple[int, ...]]]:
    """Return each tensor of an FSDP1 unit with the number of its elements on each rank.

    Each rank holds a contiguous slice of the flat parameter. In it a module's own parameters come before those of its
    submodules (_flat_param.py, ``_init_flat_param_and_metadata``): peft's adapters follow the layer that they wrap,
    LitGPT's precede it.
    """
    ranks = job.layout.shard_group
    order = list(unit)
    if job.framework.adapters.are_own_code:
        names = [_layer_of(t) for t in unit]
        order.sort(key=lambda t: (names.index(_layer_of(t)), ".lora_" not in t.name))
    slice_numel, begin = ceil_div(sum(t.numel for t in unit), ranks), 0
    numels = []
    for t in order:
        end = begin + t.numel
        rank_numels = []
        for rank in range(ranks):
            overlap = min(end, (rank + 1) * slice_numel) - max(begin, rank * slice_numel)
            rank_numels.append(max(0, overlap))
        numels.append((t, tuple(rank_numels)))
        begin = end
    return numels


def _layer_of(tensor: LocalTensor) -> str:
    """The name of the layer that a tensor or its adapter belongs to."""
    return tensor.name.partition(".lora_")[0].removesuffix(".weight").removesuffix(".bias")


def updated_pieces(
    job: TrainingJob, unit_counts: list[tuple[tuple[LocalTensor, ...], int]], *, upper_bound: bool
) -> list[tuple[LocalTensor, int]]:
    """Return each tensor that FSDP1's optimizer steps on, flattened, with the number of its elements on one rank.

    ``unit_counts``: the tensors of each distinct unit, and the number of equal units. Units that occur once are
    embedding, norm and head, which share one flat parameter. ``upper_bound``: count the most elements that any rank may
    hold of each tensor: all of it, if a rank's slice of the flat parameter is that long.
    """
    ranks = job.layout.shard_group
    unit_numels = [sum(t.numel for t in tensors) for tensors, _ in unit_counts]
    numel_outside_layers = sum(numel for numel, (_, count) in zip(unit_numels, unit_counts, strict=True) if count == 1)
    is_bound = upper_bound and not has_adapter_units(job)  # an adapter that is an FSDP unit by itself divides evenly
    pieces: list[tuple[LocalTensor, int]] = []
    for unit_numel, (tensors, count) in zip(unit_numels, unit_counts, strict=True):
        slice_numel = ceil_div(numel_outside_layers if count == 1 else unit_numel, ranks)
        for t in tensors:
            if not is_stepped(job, t):
                continue
            numel = min(t.numel, slice_numel) if is_bound else updated_numel(job, t, tensors)
            pieces += count * [(t._replace(shape=(t.numel,), matrix=False), numel)]
    return pieces


def _gathered_element_bytes(tensor: LocalTensor, recipe: Recipe, casts_every_tensor: bool) -> int:
    """Return the bytes per element of a tensor after FSDP1's all-gather; bitsandbytes' 4-bit weights are packed bytes.

    ``casts_every_tensor``: tensors with a dtype of their own are cast to the compute dtype, too.
    """
    if is_four_bits(tensor.dtype):
        return 1
    return DTYPE_BYTES[recipe.compute if tensor.dtype is None or casts_every_tensor else tensor.dtype]


def effective_freeze(job: TrainingJob) -> tuple[str, ...]:
    """Return the entries of ``freeze`` that leave tensors without a gradient where FSDP1 flattens units.

    If a part of a flat tensor is trained, all its views want a gradient (torch 2.13 distributed/fsdp/_flat_param.py,
    _use_unsharded_views), and so do the activations after them. Embedding, final norm and head are one unit; so is each
    layer.
    """
    architecture = job.architecture
    if not job.freeze or not isinstance(architecture, Architecture):
        return job.freeze
    norm_frozen = architecture.final_norm is None or "norm" in job.freeze
    all_ends_frozen = norm_frozen and is_table_frozen(job, architecture) and is_head_frozen(job, architecture)
    frozen_ends = ENDS if all_ends_frozen else ()
    freeze = tuple(word for word in job.freeze if word in (*frozen_ends, *PARTS) or word.startswith(LAYERS))
    if architecture.vision is None or job.lora is not None or not _root_is_trained(job, frozen_ends):
        return freeze

    return flattened_parts(job, architecture, architecture.vision, freeze)


def frozen_ends(job: TrainingJob) -> tuple[str, ...]:
    """Return ``freeze`` for a job whose flat parameters mix adapters and frozen weights.

    Embedding, norm and head share one flat parameter, which needs no gradient if it holds no adapter.
    """
    architecture = job.architecture
    trains = isinstance(architecture, Architecture) and any(
        t.trained for t in _tensors_outside_layers(job, architecture)
    )
    return () if trains else ENDS


def _root_is_trained(job: TrainingJob, frozen_ends: tuple[str, ...]) -> bool:
    """Return whether something outside the layers of a vision-language model is trained."""
    return not {"vision", "projector"} <= {*job.freeze} or ("language" not in job.freeze and not frozen_ends)


def is_stepped(job: TrainingJob, tensor: LocalTensor) -> bool:
    """Return whether the optimizer steps on a tensor of a flat parameter.

    It also steps on tensors in the root's flat parameter that do not run: their gradients are views that hold zeros
    (_flat_param.py, _use_sharded_grad_views).
    """
    if mixes_adapters(job):
        return any(word in tensor.name for word in ADAPTERS) or (tensor.trained and is_saved(tensor.name))
    if tensor.part in job.freeze and job.lora is None:
        return False
    if tensor.idle_fsdp_group == "root" and job.lora is None:  # it is in the root's flat parameter
        return True
    if not tensor.trained or not job.freeze:
        return tensor.trained
    # a trained tensor of a plan that freezes others: the word of `freeze` that would name it decides
    freeze_word, architecture = _freeze_word(tensor), job.architecture
    if tensor.name.startswith("embed_tokens") and isinstance(architecture, Architecture):
        return not is_table_frozen(job, architecture) and "language" not in job.freeze
    if freeze_word:
        return freeze_word not in job.freeze and "language" not in job.freeze
    patterns = tuple(w for w in job.freeze if w not in (*ENDS, *PARTS) and not w.startswith(LAYERS))
    return not is_frozen(tensor.name.removesuffix(".weight").removesuffix(".bias"), patterns)


def is_end(tensor: LocalTensor) -> bool:
    """Whether it is of the embedding, the final norm or the head."""
    return bool(_freeze_word(tensor))


def _freeze_word(tensor: LocalTensor) -> str:
    return next((word for begin, word in NAMED_ENDS.items() if tensor.name.startswith(begin)), "")


class HeadReducingShard(Record):
    """The settings of FSDP2 in a step whose loss reduces the gradient of the head itself."""

    shard: FullyShard

    @property
    def sizes(self) -> int:
        """No sizes but those of groups."""
        return 0

    def hooks(self, recorder: Recorder, step_units: StepUnits, first: int) -> FullyShardHooks:
        """Return the hooks of one step: plain FSDP2's if the rank or pipeline chunk has no head."""
        if not step_units.units[-1].reduced_by_loss:
            return FullyShardHooks(recorder, step_units, self.shard)
        return HeadReducingHooks(recorder, step_units, self.shard)


class HeadReducingHooks(FullyShardHooks):
    """FSDP2's hooks where the loss reduces the gradient of the head itself.

    ``head_groups``: the groups of the head, of which the loss reduces one and FSDP2's hook the other.
    ``norm_is_reduced``: the gradient of the final norm has been reduced in this step.
    ``pending_input``: the input of the loss's reduction while it waits for the next loss.
    """

    def __init__(self, recorder: Recorder, step_units: StepUnits, options: FullyShard) -> None:
        super().__init__(recorder, step_units, options)
        self.head, self.head_groups = step_units.units[-1], step_units.groups[-1]
        self.norm_is_reduced, self.pending_input = False, NOTHING

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return a unit's memory curve in this micro-batch; the head's gradient exists from the ``first`` one on."""
        if unit.reduced_by_loss and self.options.no_sync:
            return unit.first_curve if first else unit.later_curve
        return super().curve(unit, first)

    def reduced_by_hook(self, i: int) -> Group:
        """Return the group that the hook of unit ``i`` reduces: for the head all that the loss has not reduced."""
        return self.head_groups.reduced_by_hook if self.units[i].reduced_by_loss else self.unit_groups[i]

    def before_loss(self, *, after_model: bool) -> None:
        """Gather the group of norm and head again for the loss; the norm's post-forward hook has resharded it.

        ``after_model``: the loss runs after the model's forward. The reduce-scatter input of the previous loss is
        released here: from now on the head's memory curve counts it.
        """
        super().before_loss(after_model=after_model)
        if after_model or self.options.loss_after_root:
            if self.root != NO_GROUP:
                self._gather_root_again("loss")
            elif self.head.first_curve.peak_before_loss is not None:
                self.recorder.hold(BUFFERS, self.unit_groups[-1].all_gather_output)
                self.recorder.high("forward", self.head.first_curve.peak_before_loss, "all-gather of the head")
                self.recorder.release(BUFFERS, self.unit_groups[-1].all_gather_output)
        self.recorder.release(BUFFERS, self.pending_input)
        self.pending_input = NOTHING

    def after_forward(self, i: int, end: int) -> None:
        """Hold the head's sharded gradient, which the loss has reduced in its forward, and reshard the head.

        ``i``, ``end``: the equal units from ``i`` to ``end``. Later micro-batches add to the first shard. In a pipeline
        the norm's gradient is first reduced with the second micro-batch, whose output buffer holds both gradients.
        """
        if self.units[i].reduced_by_loss:
            if self.micro_batch.is_first:
                self.recorder.hold("gradients", self.head_groups.reduced_by_loss.reduce_scatter_output)
            elif self.options.no_sync and not self.norm_is_reduced:
                self.recorder.hold("gradients", self.head_groups.whole.reduce_scatter_output)
                self.norm_is_reduced = True
            self.recorder.release(BUFFERS, self.gathered[i])
            self.gathered[i] = NOTHING
        super().after_forward(i, end)

    def begin_backward(self, micro_batch: MicroBatch, *, all_forwards_first: bool) -> None:
        """Set the state of a backward: the input of the loss's reduction stays until the next reduction."""
        super().begin_backward(micro_batch, all_forwards_first=all_forwards_first)
        self.reduce_input = self.head_groups.reduced_by_loss.reduce_scatter_input
        self.recorder.hold(BUFFERS, self.reduce_input)
        if self.root != NO_GROUP:
            self._gather_root_again("backward")

    def release_input(self) -> None:
        """Free the input of the last reduction; in a pipeline it waits for the next loss instead."""
        if self.options.no_sync and not self.micro_batch.is_last:
            self.pending_input = self.reduce_input
        else:
            super().release_input()

    def _gather_root_again(self, instant: str) -> None:
        """Record the second all-gather of the root's group, which was resharded while nothing else was allocated."""
        self.recorder.hold(BUFFERS, self.root.all_gather_output)
        self.recorder.mark(instant, f"all-gather of {ROOT}")
        self.recorder.release(BUFFERS, self.root.all_gather_output)
