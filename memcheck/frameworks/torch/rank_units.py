"""The units of one pipeline rank in their order, those that are alike as one run.

Within a run every layer changes the live bytes by the same amount, so that the highest moment is in a layer near one of
the run's ends: those are walked one by one, and what lies between them counts by what it changes.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from memcheck.accounts.unit import NUMBERED, Part, Unit
from memcheck.autograd.context import Setting
from memcheck.frameworks.engine import engine_code
from memcheck.frameworks.torch.dtypes import embedded_dtype, stream_dtype
from memcheck.frameworks.torch.end_units import embedding_unit, head_unit
from memcheck.frameworks.torch.fsdp import (
    accumulated_dtype,
    adds_in_place,
    outside_dtype,
    reduces_head,
    skips_reduction,
    wraps,
)
from memcheck.frameworks.torch.rank_tensors import as_built, holding, layer_tensors, saves, trains_table
from memcheck.frameworks.torch.trained_parts import (
    HEAD,
    TABLE,
    frozen_layers,
    has_tensors_beside,
    is_hooked,
    is_tied,
    leaves_beside,
    recompute_mode,
)
from memcheck.frameworks.torch.units import base_setting, block_unit
from memcheck.job.types import TrainingJob
from memcheck.models.types import AltUpBlock, Architecture, Block, PictureBlock
from memcheck.record import Record


class Run(Record):
    """Consecutive units that are alike."""

    unit: Unit
    """With the name of the first."""
    times: int
    layer: int = 0
    """Number of the first, of layers."""

    def names(self) -> list[str]:
        """Name of each unit, with its layer's number where there are several."""
        if self.times == 1:
            return [self.unit.name]
        return [f"{NUMBERED[self.unit.kind]} {self.layer + i}" for i in range(self.times)]


class Accumulation(Record):
    """How autograd adds gradients of micro-batches: what of a unit depends on FSDP and PyTorch's version."""

    adds: bool
    """Some micro-batch adds to gradients that are there."""
    dtype: str | None
    """Dtype to which autograd, or an engine's hook, casts the gradients that wait for a reduction; None: none does."""
    outside: str | None
    """Dtype to which autograd casts gradients of weights that are used outside of their group's forward."""
    saves_inputs: bool = False
    """Linear layers save their inputs, also frozen ones."""


def accumulation(job: TrainingJob) -> Accumulation:
    """How the job accumulates."""
    engine = engine_code(job.framework)
    dtype = accumulated_dtype(job)
    if engine is not None and engine.sums_apart(job):
        dtype = "fp32"
    saves = engine is not None and engine.saves_inputs(job)
    return Accumulation(adds=adds_gradients(job), dtype=dtype, outside=outside_dtype(job), saves_inputs=saves)


def part_units(job: TrainingJob, architecture: Architecture, part: Part, *, inventory: bool = False) -> list[Unit]:
    """The units of one pipeline rank, in forward order."""
    runs = Units(job, architecture, accumulation(job), inventory).runs(part)
    return [run.unit._replace(name=name) for run in runs for name in run.names()]


class Units:
    """The units of a job, each made once for all of its pipeline ranks."""

    __slots__ = (
        "_added", "_alike", "_beside", "_ends", "_entry", "_equal", "_frozen", "_inventory", "_shares",
        "_table_trained", "architecture", "base", "job",
    )  # fmt: skip

    def __init__(self, job: TrainingJob, architecture: Architecture, added: Accumulation, inventory: bool) -> None:
        self.job, self.architecture = job, as_built(job, architecture)
        self.base = base_setting(job, architecture, added.dtype)._replace(saves_inputs=added.saves_inputs)
        self._entry = entry_stream(self.architecture, self.base)
        self._added, self._inventory = added, inventory
        self._shares = self.architecture.encoder is not None or self.architecture.biases[0] > 0
        self._frozen = frozenset(frozen_layers(job.freeze))
        self._table_trained = trains_table(job, self.architecture, holding(self.base))
        self._beside = self.base.trained and leaves_beside(job, self.architecture)
        self._alike: dict[tuple[Hashable, ...], Unit] = {}
        self._equal: dict[Unit, Unit] = {}
        self._ends: dict[tuple[Hashable, ...], Unit] = {}

    @property
    def _widens_first(self) -> bool:
        """The first layer's input has another dtype than those of the others."""
        return self._entry != stream_dtype(self.base)

    def runs(self, part: Part) -> list[Run]:
        """The units of one pipeline rank, in forward order, with those that are alike in one."""
        job, base, frozen = self.job, self.base, self._frozen
        checkpointing = job.checkpointing
        input_grad = self._input_wants(part)
        runs: list[Run] = []
        encoder, table = self.architecture.encoder, input_grad
        if encoder is not None and part.embedding:
            from memcheck.frameworks.torch.encoder import encoder_units

            found = encoder_units(
                job, self.architecture, encoder, base, table=self._table_trained, adds=self._added.adds,
                inventory=self._inventory,
            )  # fmt: skip
            runs += [Run(unit, times, layer) for unit, times, layer in found.runs]
            self.base = base = base._replace(encoded_grad=found.grad)
        vision = self.architecture.vision
        crossed = vision is not None and bool(vision.crosses)
        if part.embedding and not crossed:
            runs.append(Run(self._embedding(is_tied(self.architecture, base.tensor) and part.head), 1))
        runs += self._idle_units() if vision is None and part.embedding and self.architecture.others else ()
        if vision is not None and part.embedding:
            from memcheck.frameworks.torch.tower_units import side_units

            side = side_units(
                job,
                self.architecture,
                vision,
                base,
                rows_grad=input_grad,
                adds=self._added.adds,
                inventory=self._inventory,
            )
            runs += [Run(unit, times, layer) for unit, times, layer in side.runs]
            if crossed:
                self.base = base = base._replace(encoded_grad=side.input_grad)
                runs.append(Run(self._embedding(is_tied(self.architecture, base.tensor) and part.head), 1))
            else:
                input_grad = side.input_grad
        if encoder is not None and part.embedding:
            from memcheck.frameworks.torch.encoder import decoder_embedding

            lookup = decoder_embedding(runs[-1].unit, self.architecture, base, grad=table, mode=checkpointing.mode)
            runs[-1] = runs[-1]._replace(unit=lookup)
        outliving = sum(run.unit.fresh.outlives for run in runs)
        adapted = base.adapter is not None and base.adapter.targets != ()
        reads = part.last if self._shares else 1 + max(vision.crosses) if crossed and vision is not None else -1
        for block, index, times in _stretches(self.architecture.blocks, part, frozen, checkpointing.every_n_layers):
            left = times
            while left:
                trained = self._trains(block) and index not in frozen
                external = index == part.first > 0
                # the backward's first layer is where gradients start that all of an encoder-decoder's add up
                ends = index + left == reads
                gathers = ends and left == 1
                unit = self._block(block, index, input_grad, trained, external, gathers)
                # a layer without a module that is adapted leaves the graph where it begins
                after = input_grad or trained or (adapted and unit.fresh.output_gradient > 0)
                after = after or (base.encoded_grad and crossed and isinstance(block, PictureBlock))
                # what follows one with other inputs is not like it
                some = 1 if external or after != input_grad or (index == 0 and self._widens_first) else left
                if ends and some == left > 1:
                    some -= 1
                outliving += some * unit.fresh.outlives
                _put(runs, unit, index, some)
                input_grad, index, left = after, index + some, left - some
        return self._with_head(runs, part, input_grad, outliving)

    def _trains(self, block: Block) -> bool:
        """Whether a layer's own weights want gradients: with adapters in one flat parameter, if there is an adapter."""
        if not self.job.whole_gradients:
            return self.base.trained
        held = holding(self.base)._replace(trained=False)
        return any(t.trained for t in layer_tensors(self.job, block, held))

    def _input_wants(self, part: Part) -> bool:
        """Whether the first layer's input wants a gradient."""
        if self._table_trained or (self._beside and has_tensors_beside(self.architecture)):
            return True
        if part.first > 0 and not _nothing_trained_below(self.job, part.first, self._frozen, self.base):
            return True
        if self.job.lora is not None and self.architecture.extra_tensors:
            from memcheck.frameworks.torch.adapters import adapts_stream

            if adapts_stream(self.job.lora, self.architecture):
                return True
        return is_hooked(self.job, self.architecture)  # enable_input_require_grads: the looked-up rows are made to

    def _idle_units(self) -> list[Run]:
        """Layers of a model without a tower that a step of text does not run (Llama 3.2 Vision's)."""
        from memcheck.frameworks.torch.idle_towers import idle_units
        from memcheck.job.images import NO_PICTURES

        found = idle_units(self.job, self.architecture, self.base, NO_PICTURES)
        return [Run(unit, times, layer) for unit, times, layer in found]

    def _with_head(self, runs: list[Run], part: Part, input_grad: bool, graph: int) -> list[Run]:
        if part.head:
            states = sum(run.times * run.unit.fresh.freed_input for run in runs if run.unit.kind == "block")
            runs.append(Run(self._head(part, input_grad, graph, states), 1))
        return runs

    def _embedding(self, tied: bool) -> Unit:
        if saves(self.job, TABLE, HEAD):
            tied = False  # copies of its matrix are trained, which are never tied
        if reduces_head(self.job) and wraps(self.job):
            tied = False  # the head's gradient was reduced within the loss
        found = self._ends.get((tied,))
        if found is None:
            added, trained = self._added, self._table_trained or self._beside
            found = embedding_unit(self.job, self.architecture, self.base, trained, tied, added.adds, self._inventory)
            self._ends[tied,] = found
        return found

    def _block(self, block: Block, index: int, input_grad: bool, trained: bool, external: bool, gathers: bool) -> Unit:
        mode = recompute_mode(self.job, index)
        stream = self.base.stream if index or not self._widens_first else self._entry
        key = (id(block), input_grad, trained, external, mode, gathers, stream)
        found = self._alike.get(key)
        if found is None:
            setting = self.base._replace(
                input_grad=input_grad, trained=trained, external_input=external, gathers=gathers, stream=stream
            )
            found = block_unit(self.job, block, setting, mode, self._added.adds, self._inventory)
            if self._shares or isinstance(block, PictureBlock):
                from memcheck.frameworks.torch.encoder import sharing

                found = sharing(found, block, setting, mode)
            if block.borrows or block.reused:
                from memcheck.frameworks.torch.shared_tensors import gathering

                found = gathering(found, block, setting)
            # windows alternate, and layers with and without often take the same: equal curves are shared
            found = self._alike[key] = self._equal.setdefault(found, found)
        return found

    def _head(self, part: Part, input_grad: bool, graph: int, states: int) -> Unit:
        key = (part.embedding, input_grad, graph, states)
        found = self._ends.get(key)
        if found is None:
            base, (adds, _, outside, _) = self.base._replace(input_grad=input_grad), self._added
            job, architecture = self.job, self.architecture
            found = head_unit(job, architecture, base, part, adds, outside, (graph, states), self._inventory)
            self._ends[key] = found
        return found


def entry_stream(architecture: Architecture, base: Setting) -> str | None:
    """Dtype of the first layer's input: a matrix after the tables makes autocast's dtype, and a table makes its own."""
    projected = architecture.embeddings_apart and architecture.embedding_size != architecture.hidden_size
    if projected and base.autocast:
        return base.autocast
    # an embedding's norm has set the stream's dtype, or the other streams have, which are stacked with the rows
    widened = architecture.embedding_norm is not None or isinstance(architecture.blocks[0][0], AltUpBlock)
    return stream_dtype(base) if widened else embedded_dtype(architecture, base)


@lru_cache(maxsize=512)
def units_of(job: TrainingJob, architecture: Architecture, added: Accumulation, inventory: bool = False) -> Units:
    """The units of a job, made once however often they are asked for."""
    return Units(job, architecture, added, inventory)


def _put(runs: list[Run], unit: Unit, index: int, times: int) -> None:
    """Append layers to the runs that are there."""
    last = runs[-1] if runs else None
    if last is not None and _same(last.unit, unit):
        runs[-1] = last._replace(times=last.times + times)
    else:
        runs.append(Run(unit._replace(name=f"layer {index}"), times, index))


def _same(one: Unit, other: Unit) -> bool:
    return one.tensors is other.tensors and one.fresh is other.fresh and one.again is other.again


@lru_cache(maxsize=1024)
def _stretches(
    blocks: tuple[tuple[Block, int], ...], part: Part, frozen: frozenset[int], every: int
) -> tuple[tuple[Block, int, int], ...]:
    """Layers that are alike but for what lies below them: (block, number of the first, how many)."""
    found: list[tuple[Block, int, int]] = []
    before: tuple[int, bool, bool] | None = None
    layers = [block for block, count in blocks for _ in range(count)]
    for index in range(part.first, part.last):
        kind = (id(layers[index]), index in frozen, index % every == 0)
        if kind == before:
            block, first, times = found[-1]
            found[-1] = (block, first, times + 1)
        else:
            found.append((layers[index], index, 1))
        before = kind
    return tuple(found)


def _nothing_trained_below(job: TrainingJob, first: int, frozen: frozenset[int], base: Setting) -> bool:
    if base.adapter is not None:
        return False
    return "embed" in job.freeze and all(i in frozen for i in range(first))


def adds_gradients(job: TrainingJob) -> bool:
    """Whether some micro-batch finds ``.grad`` there and adds to it.

    The second one of a step does. Buckets that are the gradients, and those of an engine, are there from the start.
    Under FSDP2 autograd sees new unsharded gradients each time, unless they wait in its own dtype; of a head that the
    loss reduces in a pipeline, the reduction before is still there.
    """
    several = job.passes > 1
    if wraps(job) and not adds_in_place(job):
        return several and reduces_head(job) and skips_reduction(job)
    return several or job.layout.gradient_as_bucket_view or job.framework.own_engine
