"""What the record of a step is made of: units with places of sizes, an engine's hooks, variables of a forward."""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.rank_units import NUMBERED
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # what a protocol is to a running program


WRAPPED = ("block", "tower", "idle", "encoder")
"""Kinds of units that FSDP2 makes groups of their own of: layers, by ``_no_split_modules``."""
TOWER = ("stem", "tower", "idle", "projector", "source", "encoder", "encoded")
"""Kinds of units between the look-up of the text and the first layer, or in front of both."""


class NamedUnit(Record):
    """A unit with the places of its sizes."""

    kind: str
    """``embedding`` | ``stem`` | ``tower`` | ``idle`` | ``projector`` | ``source`` | ``encoder`` | ``encoded``
    | ``block`` | ``head``."""
    name: str
    fresh: NamedCurve
    again: NamedCurve
    reduced: str
    """A tensor whose gradient the loss itself reduces."""
    adapted: bool
    """Its own parameters are frozen, and its input is recomputed from."""


class NamedRun(Record):
    """Units that are alike, one behind the other."""

    unit: NamedUnit
    times: int
    layer: int
    """Number of the first, counted from the rank's first."""

    def names(self) -> list[str]:
        """The name of each."""
        if self.times == 1:
            return [self.unit.name]
        return [f"{NUMBERED[self.unit.kind]} {self.layer + i}" for i in range(self.times)]


class EngineHooks(Protocol):
    """What an engine around the model does while a step runs: DeepSpeed's."""

    moves_gradients: bool
    """Each gradient moves into the engine's buffers as it appears; else autograd keeps the whole model's."""

    def begin_micro_batch(self) -> None:
        """Before the forward."""

    def before_head(self) -> None:
        """The last parameter is about to be used."""

    def behind(self, kind: str, first: bool, last: bool) -> None:
        """A unit's gradients are there."""

    def end_backward(self, first: bool, last: bool) -> None:
        """The micro-batch's backward is over."""


class EngineOutline(Protocol):
    """An engine's hooks without the sizes of its buffers. Two that are equal do the same."""

    def __hash__(self) -> int:
        """Part of the key of a record."""

    def hooks(self, first: int, recorder: Recorder) -> tuple[EngineHooks, int]:
        """The hooks, whose sizes have the places from ``first`` on, and the place behind them."""


class Variables:
    """What Python variables of a forward hold beyond its last use: until each is assigned again, or it returns."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: dict[str, tuple[str, int]] = {}

    def assign(self, name: str, component: str, size: int) -> None:
        """What the variable refers to from now on, in place of what it did before."""
        component_before, before = self._held.get(name, (component, NOTHING))
        if size or before:
            self._recorder.release(component_before, before)
            self._recorder.hold(component, size)
            self._held[name] = component, size

    def let_go(self) -> None:
        """The forward has returned."""
        for component, size in self._held.values():
            self._recorder.release(component, size)
        self._held.clear()
