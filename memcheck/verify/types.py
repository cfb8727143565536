"""What running a step shows, on one rank and on all that were run; why a step could not be observed; who watches it."""

from __future__ import annotations

from typing import Protocol

from memcheck.accounts.estimate import Instant, TensorGroup
from memcheck.errors import MemcheckError
from memcheck.record import Record
from memcheck.verify.replay.runs import Event

TRACED = "traced"
MEASURED = "measured"


class RankObservation(Record):
    """One rank's step. Instants have the names that the estimate gives them."""

    pipeline_rank: int
    rank: int
    """Global rank of the process."""
    instants: tuple[Instant, ...]
    """The highest point of each; components only where every storage was followed."""
    parameters: int
    """Number of parameters that this rank holds."""
    largest: tuple[TensorGroup, ...] = ()
    """The largest groups of equal live tensors at the peak."""
    operators: int = 0
    """Operators of one step."""
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    seconds: float = 0.0
    events: tuple[Event, ...] = ()
    """Every block of the steps that were traced, for a replay of the allocator."""
    steps: tuple[int, ...] = ()
    """How many of the events come before each step but the first."""
    phases: tuple[tuple[int, str], ...] = ()
    """Parts of steps in order, each with how many of the events come before it."""

    @property
    def peak(self) -> Instant:
        """The instant with the most live bytes."""
        return max(self.instants, key=lambda i: i.allocated_bytes)


class Observation(Record):
    """What was run, with what, and what it took."""

    mode: str
    """``traced`` | ``measured``."""
    versions: dict[str, str]
    ranks: tuple[RankObservation, ...]
    notes: tuple[str, ...] = ()
    """How the run differed from a run of the whole job without changing its memory."""
    device: str = ""
    """The GPU that was measured."""
    each: tuple[RankObservation, ...] = ()
    """Every process that was measured; ``ranks`` are the highest of each pipeline rank."""


class UntraceableError(MemcheckError):
    """The plan asks for something that nothing on this machine can stand for."""


class RefusedStepError(MemcheckError):
    """PyTorch, transformers or PEFT would not build or run the step."""


class Watch(Protocol):
    """Told where the step stands."""

    phase: str

    def enter(self, phase: str) -> None:
        """From now on the step is in this phase."""


def enter_loss(watch: Watch) -> None:
    """The head starts: what was forward is now the loss. A head that is recomputed in backward changes nothing."""
    if watch.phase == "forward":
        watch.enter("loss")
