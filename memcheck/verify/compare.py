"""What running a step shows, compared with the estimate by instant and component, the largest difference first."""

from __future__ import annotations

from typing import Protocol

from memcheck.accounts.estimate import COMPONENTS, Instant, RankEstimate, TensorGroup
from memcheck.edge.screen import gib, words
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


TOLERANCE = 0.015
"""Share of the observed peak by which a prediction may be off."""
NEGLIGIBLE = 0.001
"""Below this share of the peak a term is not worth a sentence."""


class ComponentDifference(Record):
    """One component at one instant."""

    instant: str
    component: str
    predicted_bytes: int
    observed_bytes: int

    @property
    def difference(self) -> int:
        """Predicted minus observed bytes."""
        return self.predicted_bytes - self.observed_bytes


class RankComparison(Record):
    """One rank."""

    predicted: RankEstimate
    observed: RankObservation
    terms: tuple[ComponentDifference, ...]
    """Every component at every instant that both know: those at the peak first, then the largest differences."""
    surplus_bytes: int = 0
    """What a measurement counts and no tensor of the step shows, added to the prediction: BLAS workspaces."""

    @property
    def predicted_bytes(self) -> int:
        """The predicted peak, comparable with the observed one."""
        return self.predicted.peak.allocated_bytes + self.surplus_bytes

    @property
    def observed_bytes(self) -> int:
        """The observed peak."""
        return self.observed.peak.allocated_bytes

    @property
    def error(self) -> float:
        """Prediction over observation, minus one."""
        return self.predicted_bytes / self.observed_bytes - 1 if self.observed_bytes else 0.0

    def agrees(self, tolerance: float = TOLERANCE) -> bool:
        """Whether the peaks are as close as asked."""
        return abs(self.error) <= tolerance


def compare(predicted: RankEstimate, observed: RankObservation, surplus: int = 0) -> RankComparison:
    """Align one rank's instants and components."""
    highest = _by_name(predicted)
    at_peak = observed.peak.name
    found = []
    for seen in observed.instants:
        said = highest.get(seen.name)
        if said is None or not seen.components_bytes:
            continue
        for component in COMPONENTS:
            term = ComponentDifference(
                instant=seen.name,
                component=component,
                predicted_bytes=said.components_bytes.get(component, 0),
                observed_bytes=seen.components_bytes.get(component, 0),
            )
            if term.predicted_bytes or term.observed_bytes:
                found.append(term)
    found.sort(key=lambda t: (t.instant != at_peak, -abs(t.difference)))
    return RankComparison(predicted=predicted, observed=observed, terms=tuple(found), surplus_bytes=surplus)


def _by_name(rank: RankEstimate) -> dict[str, Instant]:
    """An instant that comes several times counts with its highest."""
    found: dict[str, Instant] = {}
    for instant in rank.instants:
        if instant.name not in found or instant.allocated_bytes > found[instant.name].allocated_bytes:
            found[instant.name] = instant
    return found


def instants(comparison: RankComparison) -> list[tuple[str, int | None, int | None, str]]:
    """``(instant, predicted, observed, what was observed to be happening)``, in the order of a step."""
    said = {name: i.allocated_bytes for name, i in _by_name(comparison.predicted).items()}
    seen = {i.name: i for i in comparison.observed.instants}
    names = list(dict.fromkeys([*seen, *said]))
    order = ("init", "forward", "loss", "backward", "optimizer")
    names.sort(key=lambda n: order.index(n) if n in order else len(order))
    rows = []
    for name in names:
        found = seen.get(name)
        rows.append((name, said.get(name), found and found.allocated_bytes, found.operation if found else ""))
    return rows


def sentence(comparison: RankComparison, verb: str = "traced") -> str:
    """What the largest difference at the peak is."""
    observed = comparison.observed
    peak = comparison.predicted.peak
    if not comparison.terms:
        return f"The peak is predicted {_by(comparison.predicted_bytes - comparison.observed_bytes)}."
    where = observed.peak.name
    if peak.name != where:
        # components of two different moments are not the same thing
        at_that = next((i.allocated_bytes for i in comparison.predicted.instants if i.name == where), 0)
        return (
            f"The peak is {verb} in {where}, and predicted in {peak.name}: there"
            f" {gib(at_that)} GiB are predicted, {gib(observed.peak.allocated_bytes)} {verb}."
        )
    term = comparison.terms[0]
    if abs(term.difference) < NEGLIGIBLE * observed.peak.allocated_bytes:
        return f"At the peak ({where}) no component differs by more than {NEGLIGIBLE:.1%} of it."
    largest = next((g for g in observed.largest if g.component == term.component), None)
    example = f"; the largest there: {largest.copies} x {largest.shape}, {largest.name}" if largest else ""
    return (
        f"At the peak ({where}) {words(term.component)} are predicted {_by(term.difference)}:"
        f" {gib(term.predicted_bytes)} GiB against {gib(term.observed_bytes)} {verb}{example}."
    )


def _by(difference: int) -> str:
    direction = "too high" if difference > 0 else "too low"
    return f"{gib(abs(difference))} GiB {direction}"
