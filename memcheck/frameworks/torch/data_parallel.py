"""What data parallelism does around the units of a step: hooks that the record of a step calls.

A strategy is a record that is part of the key of a recorded step: :class:`memcheck.frameworks.torch.ddp.Replicated`,
:class:`memcheck.frameworks.torch.fully_shard.FullyShard`, :class:`memcheck.frameworks.torch.flat_shard.FlatShard` and
DeepSpeed's engine, :class:`memcheck.frameworks.deepspeed.step.ZeroEngine`. It makes the hooks of one step.
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import Amount, NamedCurve, Recorder, layer_groups
from memcheck.accounts.ranks import NUMBERED
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.pipelining import StageExchange
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # what a protocol is to a running program


class NamedUnit(Record):
    """A unit whose curves hold indices of sizes instead of bytes (see :mod:`memcheck.accounts.program`)."""

    kind: str
    """One of the kinds of :class:`memcheck.accounts.ranks.Unit`."""
    name: str
    first_curve: NamedCurve
    """Sizes of the unit in the first micro-batch, whose gradients are new tensors."""
    later_curve: NamedCurve
    """Sizes of the unit in a later micro-batch, whose gradients are added to those that exist."""
    reduced: str
    """A tensor whose gradient the loss itself reduces."""
    adapted: bool
    """Whether the unit's own parameters are frozen while its input is saved for a recompute."""


class NamedRun(Record):
    """Consecutive equal units, such as the layers of a decoder."""

    unit: NamedUnit
    times: int
    layer: int
    """Number of the first unit, counted from the first layer of the rank."""

    def names(self) -> list[str]:
        """Return the name of each unit, with the number of its layer where there are several."""
        if self.times == 1:
            return [self.unit.name]
        return [f"{NUMBERED[self.unit.kind]} {self.layer + i}" for i in range(self.times)]


class UnitGroups(Record):
    """The FSDP groups that one unit's tensors are in: ``whole``, or ``early`` and ``late`` as its two parts."""

    whole: Group
    early: Group = NO_GROUP
    """The group of the tensor whose gradient the loss itself reduces; of a tower's layer the size of gradients, as
    ``gathered``, which the root's group reduces."""
    late: Group = NO_GROUP
    """The group of the others."""


NO_UNIT_GROUPS = UnitGroups(NO_GROUP)


class StepSizes(Record):
    """Bytes that a step allocates outside its units and groups."""

    per_micro_batch: int
    """Bytes of what each micro-batch in flight allocates for itself (rotary tables, masks)."""
    held: tuple[int, ...]
    """For each recorded micro-batch, what the others in flight hold: what their units saved, and their outputs in the
    stage's cache."""
    exchange: StageExchange
    """What a pipeline stage exchanges with its neighbours."""
    table: int
    """The gradient of a whole embedding table."""
    table_slice: int
    """Bytes of this rank's rows of it."""
    masks: int = 0
    """Attention masks that live while the model's forward runs."""
    rows: int = 0
    """Looked-up rows that wait for the image tokens of a vision tower, where nothing has saved them."""
    rows_gradient: int = 0
    """Bytes of the gradient of the looked-up rows, which is kept until the backward of the tower is over."""
    features: int = 0
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

    first: bool
    """The first micro-batch of the step: no gradients exist before it."""
    last: bool
    """The last micro-batch of the step, which reduces gradients if earlier ones did not synchronise."""
    sends: int
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

        ``pair_before``: an earlier micro-batch of this step has left gradients.
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
        return ((curve.gradient_bytes, 1),)

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
