"""The units of one pipeline rank in their order, equal ones as one run.

Within a run every layer changes the live bytes by the same amount, so that the highest moment is in a layer near one of
the run's ends: those are walked one by one, and what lies between them counts by what it changes.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from memcheck.accounts.ranks import Part, Run, Unit, UnitRuns
from memcheck.autograd.context import Setting
from memcheck.frameworks.registry import engine_code
from memcheck.frameworks.torch.data_parallel import (
    accumulates_unsharded,
    adds_in_place,
    autograd_gradient_dtype,
    loss_reduces_head,
    outside_gradient_dtype,
    uses_fsdp,
)
from memcheck.frameworks.torch.end_units import LayersBeforeHead, embedding_unit, head_unit
from memcheck.frameworks.torch.rank_tensors import (
    HEAD,
    TABLE,
    checked_architecture,
    embedded_dtype,
    frozen_layers,
    has_tensors_beside,
    is_hooked,
    is_tied,
    layer_tensors,
    leaves_beside,
    recompute_mode,
    saves_copy,
    setting_placement,
    stream_dtype,
    trains_table,
)
from memcheck.frameworks.torch.units import base_setting, block_unit
from memcheck.job.types import TrainingJob
from memcheck.models.types import AltUpBlock, Architecture, Block, PictureBlock
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.encoder import Encoder


class Accumulation(Record):
    """How gradients of micro-batches are accumulated: all of a unit that depends on FSDP and PyTorch's version."""

    adds_to_existing: bool
    """Some micro-batch adds to existing gradients."""
    gradient_dtype: str | None
    """Dtype to which autograd, or an engine's hook, casts gradients that wait for a reduction; None: no cast."""
    outside_gradient_dtype: str | None
    """Dtype to which autograd casts gradients of weights that are used outside of their group's forward."""
    saves_linear_inputs: bool = False
    """Linear layers save their inputs, also frozen ones."""


def accumulation(job: TrainingJob) -> Accumulation:
    """Return how a job accumulates gradients over micro-batches."""
    engine = engine_code(job.framework)
    dtype = autograd_gradient_dtype(job)
    if engine is not None and engine.casts_gradients_to_fp32(job):
        dtype = "fp32"
    saves_inputs = engine is not None and engine.saves_linear_inputs(job)
    return Accumulation(
        adds_to_existing=adds_gradients(job),
        gradient_dtype=dtype,
        outside_gradient_dtype=outside_gradient_dtype(job),
        saves_linear_inputs=saves_inputs,
    )


def part_units(job: TrainingJob, architecture: Architecture, part: Part, *, inventory: bool = False) -> list[Unit]:
    """Return the units of one pipeline rank, one by one in forward order."""
    runs = Units(job, architecture, accumulation(job), inventory).runs(part)
    return [run.unit._replace(name=name) for run in runs for name in run.names()]


class Units:
    """The units of a job, each made once for all of its pipeline ranks."""

    __slots__ = (
        "_added", "_alike", "_beside", "_ends", "_entry", "_equal", "_frozen", "_inventory", "_shares",
        "_table_trained", "architecture", "base", "job",
    )  # fmt: skip

    def __init__(self, job: TrainingJob, architecture: Architecture, added: Accumulation, inventory: bool) -> None:
        """Derive what all units share: the base setting, frozen layers, and whether the embedding is trained."""
        self.job, self.architecture = job, checked_architecture(job, architecture)
        self.base = base_setting(job, architecture, added.gradient_dtype)._replace(
            saves_linear_inputs=added.saves_linear_inputs
        )
        self._entry = entry_stream(self.architecture, self.base)
        self._added, self._inventory = added, inventory
        self._shares = self.architecture.encoder is not None or self.architecture.biases[0] > 0
        self._frozen = frozenset(frozen_layers(job.freeze))
        self._table_trained = trains_table(job, self.architecture, setting_placement(self.base))
        self._beside = self.base.trained and leaves_beside(job, self.architecture)
        self._alike: dict[tuple[Hashable, ...], Unit] = {}
        self._equal: dict[Unit, Unit] = {}
        self._ends: dict[tuple[Hashable, ...], Unit] = {}

    @property
    def _widens_first(self) -> bool:
        """Whether the first layer's input has another dtype than those of the other layers."""
        return self._entry != stream_dtype(self.base)

    def runs(self, part: Part) -> list[Run]:
        """Return the units of one pipeline rank in forward order, equal consecutive ones as one run.

        The order is: encoder, embedding, vision tower, layers, head, as far as ``part`` has them.
        """
        runs: list[Run] = []
        input_grad = self._input_needs_grad(part)
        if part.has_embedding:
            before_layers = self._before_layers(part, input_grad)
            runs += before_layers.runs
            input_grad = before_layers.output_needs_gradient
        layers = self._layers(part, input_grad)
        runs += layers.runs
        if part.has_head:
            graph = sum(run.times * run.unit.first_curve.until_graph_freed for run in runs)
            states = sum(run.times * run.unit.first_curve.freed_input_bytes for run in runs if run.unit.kind == "block")
            runs.append(Run(self._head(part, layers.output_needs_gradient, LayersBeforeHead(graph, states)), 1))
        return runs

    def _before_layers(self, part: Part, rows_grad: bool) -> UnitRuns:
        """Return the units before the first layer: the embedding, with an encoder or towers as far as the model has
        them.

        ``rows_grad``: the looked-up rows need a gradient.
        """
        vision, encoder = self.architecture.vision, self.architecture.encoder
        if encoder is not None:
            return UnitRuns(self._encoder_and_embedding(part, encoder, rows_grad), rows_grad)
        embedding = Run(self._embedding(part), 1)
        if vision is None:
            idle = self._idle_units() if self.architecture.others else []
            return UnitRuns((embedding, *idle), rows_grad)
        from memcheck.frameworks.torch.tower_units import side_units

        tower = side_units(
            self.job, self.architecture, vision, self.base, rows_grad=rows_grad, adds=self._added.adds_to_existing,
            inventory=self._inventory,
        )  # fmt: skip
        if self._reads_pictures:  # the text is embedded after the tower has run
            self.base = self.base._replace(encoder_output_grad=tower.output_needs_gradient)
            return UnitRuns((*tower.runs, Run(self._embedding(part), 1)), rows_grad)
        return UnitRuns((embedding, *tower.runs), tower.output_needs_gradient)

    def _encoder_and_embedding(self, part: Part, encoder: Encoder, rows_grad: bool) -> tuple[Run, ...]:
        """Return the units of an encoder, then the embedding of its decoder, whose rows need a gradient or not."""
        from memcheck.frameworks.torch.encoder import decoder_embedding, encoder_units

        encoded = encoder_units(
            self.job, self.architecture, encoder, self.base, table_trained=self._table_trained,
            adds=self._added.adds_to_existing, inventory=self._inventory,
        )  # fmt: skip
        self.base = self.base._replace(encoder_output_grad=encoded.output_needs_gradient)
        mode, embedding = self.job.checkpointing.mode, self._embedding(part)
        lookup = decoder_embedding(embedding, self.architecture, self.base, table_trained=rows_grad, mode=mode)
        return (*encoded.runs, Run(lookup, 1))

    def _layers(self, part: Part, input_grad: bool) -> UnitRuns:
        """Return a rank's layers in forward order.

        Equal layers are told apart by whether their input needs a gradient: from the first trained layer on it does.
        ``input_grad``: the first layer's input does already.
        """
        runs: list[Run] = []
        end_of_readers = self._end_of_readers(part)
        interval = self.job.checkpointing.every_n_layers
        for block, index, times in _layer_groups(self.architecture.blocks, part, self._frozen, interval):
            trained = self._trains(block) and index not in self._frozen
            end = index + times
            while index < end:
                external = index == part.first_layer > 0
                has_last_reader = end == end_of_readers
                # the backward's first layer is where gradients start that all readers of a shared tensor add up
                gathers = has_last_reader and index == end - 1
                unit = self._block(block, index, input_grad, trained, external, gathers)
                output_grad = input_grad or trained or self._starts_graph(block, unit)
                # a layer with another input than the layers after it is a run of its own, and so is the last reader
                own_run = external or output_grad != input_grad or (index == 0 and self._widens_first)
                count = 1 if own_run else end - index
                if has_last_reader and count == end - index > 1:
                    count -= 1
                _append(runs, unit, index, count)
                input_grad, index = output_grad, index + count
        return UnitRuns(tuple(runs), input_grad)

    def _starts_graph(self, block: Block, unit: Unit) -> bool:
        """Say whether a frozen layer's output needs a gradient although its input needs none.

        It does if the layer has an adapter, or reads the pictures of a trained tower.
        """
        has_adapter = self.base.adapter is not None and self.base.adapter.targets != ()
        if has_adapter and unit.first_curve.output_gradient_bytes > 0:
            return True
        return self._reads_pictures and self.base.encoder_output_grad and isinstance(block, PictureBlock)

    @property
    def _reads_pictures(self) -> bool:
        """Whether layers of text read pictures by cross-attention (Llama 3.2 Vision)."""
        vision = self.architecture.vision
        return vision is not None and bool(vision.text_layers_that_read_images)

    def _end_of_readers(self, part: Part) -> int:
        """Return the number after the last layer that reads a shared tensor, such as the encoder's output; -1: none."""
        if self._shares:
            return part.end_layer
        vision = self.architecture.vision
        return 1 + max(vision.text_layers_that_read_images) if vision is not None and self._reads_pictures else -1

    def _trains(self, block: Block) -> bool:
        """Return whether a layer's own weights need gradients.

        Where FSDP1 flattens adapters and frozen weights into one parameter, every view of it needs one.
        """
        if not self.job.flat_param_gradients:
            return self.base.trained
        adapters_only = setting_placement(self.base)._replace(trained=False)
        return any(t.trained for t in layer_tensors(self.job, block, adapters_only))

    def _input_needs_grad(self, part: Part) -> bool:
        """Return whether the input of the first layer of ``part`` needs a gradient."""
        if self._table_trained or (self._beside and has_tensors_beside(self.architecture)):
            return True
        if part.first_layer > 0 and not _nothing_trained_below(self.job, part.first_layer, self._frozen, self.base):
            return True
        if self.job.lora is not None and self.architecture.extra_tensors:
            from memcheck.frameworks.torch.adapters import adapts_stream

            if adapts_stream(self.job.lora, self.architecture):
                return True
        return is_hooked(self.job, self.architecture)  # enable_input_require_grads: the looked-up rows are made to

    def _idle_units(self) -> list[Run]:
        """Return the units that a step of text does not run: Llama 3.2 Vision's cross-attention layers."""
        from memcheck.frameworks.torch.tower_tensors import idle_units
        from memcheck.job.images import NO_PICTURES

        return idle_units(self.job, self.architecture, self.base, NO_PICTURES)

    def _embedding(self, part: Part) -> Unit:
        """Return the unit of the embedding of a rank with this part of the model, which may have the tied head."""
        tied = part.has_head and is_tied(self.architecture, self.base.tensor_parallel)
        if saves_copy(self.job, TABLE, HEAD):
            tied = False  # peft trains copies of the matrix, which are never tied
        if loss_reduces_head(self.job) and uses_fsdp(self.job):
            tied = False  # the head's gradient was reduced within the loss
        unit = self._ends.get((tied,))
        if unit is None:
            added, trained = self._added, self._table_trained or self._beside
            unit = embedding_unit(
                self.job, self.architecture, self.base, trained, tied, added.adds_to_existing, self._inventory
            )
            self._ends[tied,] = unit
        return unit

    def _block(self, block: Block, index: int, input_grad: bool, trained: bool, external: bool, gathers: bool) -> Unit:
        """Return the unit of layer ``index``; equal layers share one.

        ``external``: its input was received from another pipeline rank. ``gathers``: its backward is where gradients of
        a tensor that several layers read are summed.
        """
        mode = recompute_mode(self.job, index)
        stream = self._entry if index == 0 and self._widens_first else self.base.residual_dtype
        key = (id(block), input_grad, trained, external, mode, gathers, stream)
        unit = self._alike.get(key)
        if unit is None:
            setting = self.base._replace(
                needs_input_gradient=input_grad,
                trained=trained,
                input_is_counted_elsewhere=external,
                starts_shared_gradients=gathers,
                residual_dtype=stream,
            )
            unit = block_unit(self.job, block, setting, mode, self._added.adds_to_existing, self._inventory)
            if self._shares or isinstance(block, PictureBlock):
                from memcheck.frameworks.torch.encoder import sharing

                unit = sharing(unit, block, setting, mode)
            if block.shared_with.later or block.shared_with.earlier:
                from memcheck.frameworks.torch.ddp import gathering

                unit = gathering(unit, block, setting)
            # windows alternate, and layers with and without often take the same: equal curves are shared
            unit = self._alike[key] = self._equal.setdefault(unit, unit)
        return unit

    def _head(self, part: Part, input_grad: bool, layers: LayersBeforeHead) -> Unit:
        """Return the unit of final norm, head and loss. ``layers``: what the loss keeps alive of the layers."""
        key = (part.has_embedding, input_grad, layers)
        unit = self._ends.get(key)
        if unit is None:
            base, (adds, _, outside, _) = self.base._replace(needs_input_gradient=input_grad), self._added
            unit = head_unit(self.job, self.architecture, base, part, adds, outside, layers, self._inventory)
            self._ends[key] = unit
        return unit


def entry_stream(architecture: Architecture, base: Setting) -> str | None:
    """Return the dtype of the first layer's input; None is that of the setting.

    A projection after the embedding table returns autocast's dtype, and a table returns its own.
    """
    projected = architecture.embedding_module.is_separate and architecture.embedding_size != architecture.hidden_size
    if projected and base.autocast_dtype:
        return base.autocast_dtype
    # an embedding's norm has set the stream's dtype, or the other streams have, which are stacked with the rows
    widened = architecture.embedding_norm is not None or isinstance(architecture.blocks[0][0], AltUpBlock)
    return stream_dtype(base) if widened else embedded_dtype(architecture, base)


@lru_cache(maxsize=512)
def units_of(job: TrainingJob, architecture: Architecture, added: Accumulation, inventory: bool = False) -> Units:
    """The units of a job, made once however often they are asked for."""
    return Units(job, architecture, added, inventory)


def _append(runs: list[Run], unit: Unit, index: int, count: int) -> None:
    """Append ``count`` layers that share ``unit``; if the last run has the same unit, only its count grows.

    ``index``: the number of the first layer.
    """
    last = runs[-1] if runs else None
    if last is not None and _same(last.unit, unit):
        runs[-1] = last._replace(times=last.times + count)
    else:
        runs.append(Run(unit._replace(name=f"layer {index}"), count, index))


def _same(unit: Unit, other: Unit) -> bool:
    """Say whether two units are equal layers: they share their tensors and memory curves."""
    return (
        unit.tensors is other.tensors
        and unit.first_curve is other.first_curve
        and unit.later_curve is other.later_curve
    )


@lru_cache(maxsize=1024)
def _layer_groups(
    blocks: tuple[tuple[Block, int], ...], part: Part, frozen: frozenset[int], recompute_interval: int
) -> tuple[tuple[Block, int, int], ...]:
    """Group consecutive equal layers of a rank, as (block, number of the first layer, how many layers).

    ``blocks``: the model's blocks with their counts. ``part``: the rank's layers. Equal layers have the same block, are
    all ``frozen`` or not, and all recomputed or not: every ``recompute_interval``-th layer is. They may still differ in
    whether their input needs a gradient.
    """
    groups: list[tuple[Block, int, int]] = []
    previous_key: tuple[int, bool, bool] | None = None
    layers: list[Block] = []
    for block, count in blocks:
        layers += [block] * count
    for index in range(part.first_layer, part.end_layer):
        key = (id(layers[index]), index in frozen, index % recompute_interval == 0)
        if key == previous_key:
            block, first, times = groups[-1]
            groups[-1] = (block, first, times + 1)
        else:
            groups.append((layers[index], index, 1))
        previous_key = key
    return tuple(groups)


def _nothing_trained_below(job: TrainingJob, first: int, frozen: frozenset[int], base: Setting) -> bool:
    """Return whether embedding and all layers before layer ``first`` are frozen and have no adapters."""
    if base.adapter is not None:
        return False
    return "embed" in job.freeze and all(i in frozen for i in range(first))


def adds_gradients(job: TrainingJob) -> bool:
    """Return whether some micro-batch finds ``.grad`` set and adds to it.

    The second one of a step does. DDP's buckets that are the gradients, and an engine's buckets, exist from the start.
    Under FSDP2 autograd sees new unsharded gradients each time, unless they wait in its own dtype; of a head that the
    loss reduces in a pipeline, the reduction before is still there.
    """
    accumulates = job.forward_passes > 1
    if uses_fsdp(job) and not adds_in_place(job):
        return accumulates and loss_reduces_head(job) and accumulates_unsharded(job)
    return accumulates or job.layout.gradient_as_bucket_view or job.framework.has_sharding_engine
