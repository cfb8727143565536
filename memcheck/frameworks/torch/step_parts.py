"""What the record of a step is made of: units with places of sizes, an engine's hooks, variables of a forward."""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import NOTHING, Amount, Bundle, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.rank_units import NUMBERED
from memcheck.frameworks.torch.step_options import StepOptions, StepSizes, UnitGroups
from memcheck.frameworks.torch.tower_setup import AT_REST
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # what a protocol is to a running program


TOWER = (
    "stem", "tower", "gathered", "idle", "resting", "beside", "merger", "projector", "source", "encoder", "encoded",
)  # fmt: skip
"""Kinds of units between the look-up of the text and the first layer, or in front of both."""


class NamedUnit(Record):
    """A unit with the places of its sizes."""

    kind: str
    """``embedding`` | ``stem`` | ``tower`` | ``idle`` | ``resting`` | ``beside`` (resident tensors that are no layer) |
    ``merger`` | ``projector`` | ``source`` | ``encoder`` | ``encoded`` | ``block`` | ``head``.
    """
    name: str
    fresh: NamedCurve
    again: NamedCurve
    reduced: str
    """A tensor whose gradient the loss itself reduces."""
    adapted: bool
    """Whether the unit's own parameters are frozen while its input is saved for a recompute."""


class NamedRun(Record):
    """Consecutive units that are alike."""

    unit: NamedUnit
    times: int
    layer: int
    """Number of the first, counted from the rank's first."""

    def names(self) -> list[str]:
        """Name of each unit, with its layer's number where there are several."""
        if self.times == 1:
            return [self.unit.name]
        return [f"{NUMBERED[self.unit.kind]} {self.layer + i}" for i in range(self.times)]


Arrivals = tuple[Bundle | None, Bundle | None]


class EngineHooks(Protocol):
    """What an engine around the model does while a step runs: DeepSpeed's."""

    moves_gradients: bool
    """Each gradient moves into the engine's buffers as it appears; else autograd keeps the whole model's."""

    def begin_micro_batch(self) -> None:
        """Before the forward."""

    def before_head(self) -> None:
        """The last unit is about to run."""

    def before_last(self) -> None:
        """The first unit's backward is about to run."""

    def behind(self, kind: str, hooked: Arrivals, name: str, first: bool, last: bool) -> None:
        """A unit's gradients are there; ``hooked``: highest points where one arrived, and another than the first."""

    def end_backward(self, first: bool, last: bool) -> None:
        """The micro-batch's backward is over."""


class EngineOutline(Protocol):
    """An engine's hooks without the sizes of its buffers. Two that are equal do the same."""

    def __hash__(self) -> int:
        """Part of the key of a record."""

    def hooks(self, first: int, recorder: Recorder) -> tuple[EngineHooks, int]:
        """The hooks, whose sizes have the places from ``first`` on, and the first place after them."""


def own_groups(units: Sequence[NamedUnit], groups: Sequence[UnitGroups], root: Group, how: StepOptions) -> list[Group]:
    """For each unit the group that is gathered for it alone; none when it belongs to the root.

    Of embedding and head it is what is trained in them, where FSDP1 makes units of that, or what is carved out.
    """
    shared = root != NO_GROUP and not (how.leaves_apart or how.carved)
    return [NO_GROUP if shared and u.kind not in how.wrapped else g.whole for u, g in zip(units, groups, strict=True)]


FIRST_OF_TOWER = "vision layer 0"
OF_TOWER = ("last_hidden_state", "pooler_output", "idle", "merger")
"""Variables that refer to what a tower has made."""


class Variables:
    """What Python variables of a forward hold beyond its last use: until each is assigned again, or it returns."""

    def __init__(self, recorder: Recorder, *, embeds: bool = False) -> None:
        self._recorder, self._embeds = recorder, embeds
        self._held: dict[str, tuple[str, int, int]] = {}

    def assign(self, name: str, component: str, size: int, times: int = 1) -> None:
        """Set what the variable refers to from now on, in place of what it did before. ``times``: the number of tensors
        alike.
        """
        component_before, before, many = self._held.get(name, (component, NOTHING, 1))
        if size or before:
            self._recorder.release(component_before, before, many)
            self._recorder.hold(component, size, times)
            self._held[name] = component, size, times

    def behind(
        self, unit: NamedUnit, curve: NamedCurve, layer: int, times: int, how: StepOptions, beyond: StepSizes
    ) -> None:
        """Assign what variables of the model's forward refer to after a unit. ``layer``: counted from the first one of
        text; ``times``: the number of units alike.
        """
        if not self.of_tower(unit, curve, layer, times):
            name = "looked up" if unit.kind == "embedding" else "outputs"  # of the model's loop over its layers
            self.assign(name, "activations", curve.returned)
        first = layer == 0 and not how.keeps_states and self._embeds
        if how.holds_rows and (unit.kind == "embedding" or first):  # `inputs_embeds`: a variable of the forward
            self.assign(f"inputs_embeds {unit.kind}", "activations", curve.freed_input)
        if unit.kind == "embedding":
            self.assign("rows", "activations", beyond.rows)
        # `causal_mask`: from the look-up of the rows until the stack has returned
        self.assign("causal_mask", "activations", NOTHING if unit.kind == "head" or layer < -1 else beyond.masks)

    def of_tower(self, unit: NamedUnit, curve: NamedCurve, layer: int, times: int) -> bool:
        """Whether the unit is outside the language model; if so, the variables get what they refer to after it.

        Image tokens are put into their places in a new tensor. The tower's last rows, with the graph of layers that
        nothing reads, and its image tokens are in what the forward got from it (``mm_encoder_outputs``).
        """
        if unit.kind not in TOWER:
            return False
        if unit.kind == "projector":
            self.assign("rows", "activations", NOTHING)
            for name in self.starting("stem", "gathered"):
                self.assign(name, "activations", NOTHING)
            self.assign("last_hidden_state", "activations", curve.freed_input)
            self.assign("pooler_output", "activations", curve.returned)
        elif unit.name == FIRST_OF_TOWER:  # its input, where the loop over layers is another's
            self.assign("stem's rows", "activations", curve.returned)
        elif unit.kind == "stem":  # the tower's own variables
            self.assign("stem", "activations", curve.returned)
        elif unit.kind in AT_REST:
            return True
        elif unit.kind in ("idle", "merger", "gathered"):
            self.assign(f"{unit.kind} {layer}", "activations", curve.returned, times)
        else:
            return False
        return True

    def starting(self, *names: str) -> list[str]:
        """Variables whose names begin so."""
        return [name for name in self._held if name.startswith(names)]

    def let_go(self, *, towers: bool = True) -> None:
        """The forward has returned. ``towers``: that which has what the tower made has, too."""
        kept = () if towers else self.starting(*OF_TOWER)
        for name in [name for name in self._held if name not in kept]:
            component, size, times = self._held.pop(name)
            self._recorder.release(component, size, times)


def idle_outputs(units: Sequence[NamedUnit], stretches: Sequence[tuple[int, int]]) -> Amount:
    """What a training loop's variable holds after the forward: outputs of layers whose results are unused."""
    return tuple([(units[i].fresh.lingers, end - i) for i, end in stretches if units[i].kind == "idle"])


def keep_inputs(
    recorder: Recorder, how: StepOptions, units: Sequence[NamedUnit], i: int, times: int, kept: list[tuple[int, int]]
) -> None:
    """What the graph holds in addition to saved tensors: of a frozen unit more than of others."""
    if not how.keeps_graph:
        kept.append((units[i].fresh.outlives, times))
    if how.keeps_inputs and units[i].adapted:
        from memcheck.frameworks.torch.kept_inputs import hold_inputs

        hold_inputs(recorder, units, i, times, kept)


def shared(unit: NamedUnit, groups: UnitGroups, own: Amount, root: Amount, times: int) -> tuple[Amount, Amount]:
    """Gradients that a unit's own hook reduces, and that the root's does: those of a tower's units may be in both."""
    rest = groups.early.gathered if unit.kind in TOWER else NOTHING
    return ((*own, (rest, -1)), (*root, (rest, times))) if rest else (own, root)
