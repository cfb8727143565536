"""A pipeline rank: its units, its resident tensors, its step on top of them, and the rank with the highest peak.

A unit has resident tensors and the curve of what it computes. Resident bytes are the same at every instant, so that
they decide neither which moment is the highest nor what lives then. A step is walked once without them, and any
resident bytes are added later. Of a grid's points many share the walk (other states, other data-parallel ranks) and
many share the states (other batches, other recompute).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from memcheck.accounts.estimate import Formula, Instant
from memcheck.accounts.state import LocalTensor, Unfilled
from memcheck.autograd.curve import Curve, Inventory
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.autograd.curve import Peak
    from memcheck.job.types import TrainingJob


if TYPE_CHECKING:

    class RecordedStep(Protocol):
        """A rank's step without the resident bytes: the highest moment of each instant."""

        @property
        def tops(self) -> Tops:
            """Each instant and its bytes."""

        @property
        def ceiling(self) -> float:
            """Bytes that no instant exceeds, known before the step is recorded; infinite where no bound is known."""

        def moment(self, index: int) -> Moment:
            """One instant with its components."""

        def high(self, index: int) -> Peak | None:
            """The unit's highest point that an instant's is, if it is one."""

    BytesBefore = Callable[["RankPeak"], int]

Tops = Sequence[tuple[str, int]]
"""The name of each instant of a step, such as ``forward``, with its live bytes without the resident ones."""

Components = tuple[tuple[str, int], ...]
"""Live bytes by component: pairs of a name, such as ``parameters`` or ``activations``, and bytes."""


class Moment(Record):
    """The highest point of one instant, without the resident bytes."""

    name: str
    """The instant, such as ``forward``, in the words of :attr:`memcheck.accounts.estimate.Instant.name`."""
    operation: str
    """The operation during which the bytes were highest, in words."""
    bytes: int
    """Live bytes."""
    live: Components
    """Live bytes by component, in the order in which components were first held; empty ones are included."""


class ResidentStates(Record):
    """What is resident on a rank, and what its optimizer's step takes for itself."""

    components: Components
    """In the order in which they are held."""
    operation: str
    """The optimizer's step in words."""
    temporaries: int
    paged: int = 0
    """Optimizer states in managed memory, which torch does not count and the driver moves to the host."""
    unfilled: Unfilled | None = None
    """What resident blocks leave unfilled in segments, in bytes; None: not known."""


Tensors = tuple[object, ...]


class ResidentTensors:
    """The resident tensors of a rank, unit by unit. Two are the same only if they are one object."""

    __slots__ = ("runs",)

    def __init__(self, runs: tuple[tuple[Tensors, int], ...]) -> None:
        self.runs = runs
        """Pairs of one unit's tensors and the number of consecutive units that hold them."""

    @property
    def units(self) -> tuple[Tensors, ...]:
        """Unit by unit."""
        return tuple([tensors for tensors, times in self.runs for _ in range(times)])


REMEMBERED = 4096
_tuples: dict[Tensors, Tensors] = {}
_canonical: set[int] = set()
"""The identities of the tuples that are kept."""
_resident: dict[tuple[tuple[int, int], ...], ResidentTensors] = {}


def interned(runs: Sequence[tuple[Tensors, int]]) -> ResidentTensors:
    """Return one shared object for all ranks that hold equal tensors.

    ``runs``: as :attr:`ResidentTensors.runs`. Equal tuples are first replaced by one of them, so that the identities of
    the tuples are the key of the cache. An entry keeps its tuples alive, so that their identities are not used again.
    """
    if len(_resident) >= REMEMBERED or len(_tuples) >= REMEMBERED:
        forget()
    canonical = {id(tensors): tensors for tensors, _ in runs}
    for identity, tensors in canonical.items():
        if identity not in _canonical:  # to hash the tensors of hundreds of experts takes longer than to add them up
            canonical[identity] = _tuples.setdefault(tensors, tensors)
            _canonical.add(id(canonical[identity]))
    canonical_runs = tuple([(canonical[id(tensors)], times) for tensors, times in runs])
    key = tuple([(id(tensors), times) for tensors, times in canonical_runs])
    resident = _resident.get(key)
    if resident is None:
        resident = _resident[key] = ResidentTensors(canonical_runs)
    return resident


def forget() -> None:
    """Empty the caches of :func:`interned`."""
    _resident.clear()
    _tuples.clear()
    _canonical.clear()


def highest(resident: ResidentStates, tops: Tops, all_step: Components = ()) -> int:
    """Compute the peak of a step in bytes, with everything that is live during the whole step.

    ``resident``: the states. ``tops``: the bytes of each instant without them. ``all_step``: further bytes by component
    that are live during the whole step.
    """
    peak = 0
    for name, n_bytes in tops:
        if name == "optimizer":
            n_bytes += resident.temporaries
        peak = max(peak, n_bytes)
    for _, n_bytes in resident.components:
        peak += n_bytes
    for _, n_bytes in all_step:
        peak += n_bytes
    return peak


def peak_on(resident: ResidentStates, tops: Tops) -> int:
    """Return the index of the instant with the most live bytes on top of ``resident``; of equal ones the first."""
    highest_index, peak = 0, -1
    for index, (name, n_bytes) in enumerate(tops):
        if name == "optimizer":
            n_bytes += resident.temporaries
        if n_bytes > peak:
            highest_index, peak = index, n_bytes
    return highest_index


def with_resident(
    resident: ResidentStates, moments: Sequence[Moment], all_step: Components = ()
) -> tuple[Instant, ...]:
    """Return the instants of a step: its moments, with the resident states added to each.

    ``moments``: bytes of everything else that is live. ``all_step``: further bytes by component that are live during
    the whole step. The optimizer's moment also has the temporaries of its step.
    """
    base_components: dict[str, int] = {}
    base = 0
    for component, n_bytes in (*resident.components, *all_step):
        if n_bytes:
            base_components[component] = base_components.get(component, 0) + n_bytes
            base += n_bytes
    instants = []
    for name, operation, n_bytes, live in moments:
        total, components = base + n_bytes, base_components.copy()
        for component, live_bytes in live:
            components[component] = components.get(component, 0) + live_bytes
        if name == "optimizer":
            operation = resident.operation
            total += resident.temporaries
            components["temporaries"] = components.get("temporaries", 0) + resident.temporaries
        instants.append(Instant(name, operation, total, {k: v for k, v in components.items() if v}))
    return tuple(instants)


class Always(Record):
    """Bytes of a component that are live during the whole step."""

    component: str
    bytes: int
    bytes_per_micro_batch: int = 0
    """Further bytes for each micro-batch in flight."""


class RankPeak:
    """A rank's step without the resident bytes. A framework's ranks add what its own code asks of them."""

    __slots__ = ("always", "host_bytes", "number", "parameters", "step", "tensors")

    def __init__(
        self,
        number: int,
        step: RecordedStep,
        tensors: ResidentTensors,
        always: tuple[Always, ...],
        parameters: int,
        host_bytes: int = 0,
    ) -> None:
        """``parameters``: how many the rank has; ``host_bytes``: what micro-batches in flight keep in host memory."""
        self.number, self.step = number, step
        self.tensors, self.always = tensors, always
        self.parameters, self.host_bytes = parameters, host_bytes

    @property
    def tops(self) -> Tops:
        """Each instant and its bytes."""
        return self.step.tops

    def high(self, instant: str) -> Peak | None:
        """Return the unit's highest point that an instant's is, if it is one."""
        names = [name for name, _ in self.tops]
        return self.step.high(names.index(instant)) if instant in names else None

    def live_all_step(self, micro_batches: int) -> Components:
        """Bytes by component that are live during the whole step, without the states."""
        return tuple([(a.component, a.bytes + a.bytes_per_micro_batch * micro_batches) for a in self.always])


class RankStates:
    """What follows from the states of a ``state_key`` job alone, kept for all of its ranks."""

    __slots__ = ("_known", "_states_of", "job")

    def __init__(self, job: TrainingJob, states_of: Callable[[TrainingJob, ResidentTensors], ResidentStates]) -> None:
        self.job, self._states_of = job, states_of
        self._known: dict[ResidentTensors, ResidentStates] = {}

    def resident(self, tensors: ResidentTensors) -> ResidentStates:
        """Return the states of a rank with these tensors: parameters, gradients, optimizer."""
        states = self._known.get(tensors)
        if states is None:
            states = self._known[tensors] = self._states_of(self.job, tensors)
        return states


class RankAtPeak(Record):
    """A rank with its states, and its highest point."""

    peak: int
    """Bytes of the highest point of the step."""
    bytes_before_step: int
    """Bytes of a moment before the step, which may be higher."""
    rank: RankPeak
    resident: ResidentStates
    always: Components
    """Bytes that are live during the whole step, without the states."""

    def instants(self) -> tuple[Instant, ...]:
        """List every instant of the step."""
        step = self.rank.step
        return with_resident(self.resident, [step.moment(i) for i in range(len(step.tops))], self.always)

    def instant(self) -> tuple[Instant, ...]:
        """Return the instant with the most bytes."""
        index = peak_on(self.resident, self.rank.tops)
        return with_resident(self.resident, (self.rank.step.moment(index),), self.always)

    def bytes_of(self, tops: Tops) -> int:
        """The peak of some instants, given their bytes without the resident ones."""
        return highest(self.resident, tops, self.always)


def at_peak(rank: RankPeak, states: RankStates, micro_batches: int, before: int = 0) -> RankAtPeak:
    """Compute the peak bytes of a rank: its recorded step with the resident ``states``.

    ``micro_batches``: per step. ``before``: bytes of a moment before the step, such as loading.
    """
    resident, always = states.resident(rank.tensors), rank.live_all_step(micro_batches)
    peak = highest(resident, rank.tops, always)
    return RankAtPeak(peak=peak, bytes_before_step=before, rank=rank, resident=resident, always=always)


def highest_rank(
    ranks: Iterable[RankPeak], states: RankStates, micro_batches: int, before: BytesBefore | None = None
) -> RankAtPeak:
    """Find the rank with the highest peak; of equal ones the first.

    ``states``: the resident states. ``micro_batches``: per step. ``before``: a function from a rank to the bytes of a
    moment before the step. To save time, a step is not recorded if its upper bound is below the highest peak so far.
    """
    worst: RankAtPeak | None = None
    for rank in ranks:
        before_bytes = 0 if before is None else before(rank)
        if worst is None:
            worst = at_peak(rank, states, micro_batches, before_bytes)
            continue
        highest_so_far = max(worst.peak, worst.bytes_before_step)
        if before_bytes <= highest_so_far and _upper_bound(rank, states, micro_batches) <= highest_so_far:
            continue
        candidate = at_peak(rank, states, micro_batches, before_bytes)
        if max(candidate.peak, before_bytes) > highest_so_far:
            worst = candidate
    assert worst is not None  # noqa: S101 - a job has ranks
    return worst


def _upper_bound(rank: RankPeak, states: RankStates, micro_batches: int) -> float:
    """Return bytes that the rank's peak does not exceed, without recording its step; infinite: no bound is known."""
    ceiling = rank.step.ceiling
    if ceiling == inf:
        return ceiling
    resident = states.resident(rank.tensors)
    resident_bytes = sum([n_bytes for _, n_bytes in (*resident.components, *rank.live_all_step(micro_batches))])
    return resident_bytes + resident.temporaries + ceiling


NEVER_RUN = "never-run layer"
"""Kind of a layer that a step does not run, such as one of an audio tower in a step of text. FSDP never gathers it."""
NEVER_RUN_PART = "never-run part"
"""Kind of all other modules that a step does not run, such as a tower's projector."""
NEVER_GATHERED = (NEVER_RUN, NEVER_RUN_PART)
"""Kinds of units whose FSDP groups are never gathered."""
WRAPPED = ("block", "tower", "gathered", "idle", NEVER_RUN, "encoder")
"""Kinds of units that FSDP makes groups of their own of: layers, by ``_no_split_modules``."""
TOWERS = ("tower", "gathered", "idle", NEVER_RUN)
"""Kinds of FSDP units that are layers of a vision or audio tower."""
OF_LANGUAGE = ("block", "encoder")
"""Kinds of FSDP units that are layers of the language model or of an encoder."""
OF_TOWER = (
    "stem", "tower", "gathered", "idle", NEVER_RUN, NEVER_RUN_PART, "merger", "projector", "source", "encoder",
    "encoded",
)  # fmt: skip
"""Kinds of units between the look-up of the text and the first layer, or before both."""
NUMBERED = {
    "block": "layer", "tower": "vision layer", "gathered": "vision layer", "idle": "idle layer",
    NEVER_RUN: "idle layer", NEVER_RUN_PART: "idle part", "encoder": "encoder layer",
}  # fmt: skip
"""What layers of each kind are called, before their number."""


class Unit(Record):
    """One unit of the model on one rank."""

    kind: str
    """``embedding`` | ``block`` | ``head``; of a vision tower ``stem`` | ``tower`` (a layer) | ``idle`` (weights that
    get no gradient) | ``projector``; of an encoder ``source`` (its input) | ``encoder`` (a layer) | ``encoded``."""
    name: str
    tensors: tuple[LocalTensor, ...]
    """The unit's parameters, without the tied head's copy of the embedding."""
    first_curve: Curve
    """The curve of the first micro-batch, whose gradients are new."""
    later_curve: Curve
    """The curve of later micro-batches, whose gradients are added to existing ones. The same where no micro-batch adds
    any.
    """
    reduced_by_loss: str = ""
    """Name of the tensor whose gradient the loss reduces, before the unit's forward ends; empty: there is none."""
    frozen_and_recomputed: bool = False
    """Whether the unit's own parameters are frozen while its input is saved for a recompute."""
    offloaded_bytes: int = 0
    """Bytes that its forward sends to the host and its backward fetches (activation offload)."""


class Run(Record):
    """Consecutive equal units, such as the layers of a decoder."""

    unit: Unit
    """The unit, with the name of the first one."""
    times: int
    """The number of units."""
    first_layer: int = 0
    """The number of the first layer in its part of the model; 0 for a unit that is no layer."""

    def names(self) -> list[str]:
        """Return the name of each unit, with the number of its layer if there are several."""
        if self.times == 1:
            return [self.unit.name]
        return [f"{NUMBERED[self.unit.kind]} {self.first_layer + i}" for i in range(self.times)]


class UnitRuns(Record):
    """Some units of a rank in forward order."""

    runs: tuple[Run, ...]
    """Equal consecutive units are one run."""
    output_needs_gradient: bool
    """Whether the layers that read the units' output have to return a gradient for it."""


class Part(Record):
    """Which layers a pipeline rank holds."""

    first_layer: int
    """The number of the first layer."""
    end_layer: int
    """The number after that of the last layer."""
    has_embedding: bool
    """The rank holds the embedding."""
    has_head: bool
    """The rank holds the final norm and the head."""


class UnitsInFlight(Record):
    """A unit whose saved tensors are alive, and the number of micro-batches in flight."""

    unit: Unit
    times: int = 1


def activation_formulas(kept: list[UnitsInFlight], peak: Instant, n_bytes: int, source: str) -> list[Formula]:
    """List the formulas of the saved activations at the peak: one for all, then one for each group of equal units.

    ``kept``: the units whose saved tensors live at the peak. ``n_bytes``: all activations at the peak. ``source``:
    where the forward passes were read.
    """
    where = peak.operation.rpartition(" in ")[2]
    alive: dict[tuple[Inventory, int], list[Unit]] = {}
    for in_flight in kept:
        alive.setdefault((in_flight.unit.first_curve.saved_inventory, in_flight.times), []).append(in_flight.unit)
    formulas = [
        Formula(
            "activations",
            "tensors kept for backward by the units below, plus the unit at work",
            where,
            bytes=n_bytes,
            source=source,
        )
    ]
    for (inventory, times), group in alive.items():
        first, last = group[0].name, group[-1].name
        name = first if len(group) == 1 else f"{first} to {last}"
        unit_bytes = group[0].first_curve.saved_bytes
        batches = f" x {times} micro-batches in flight" if times > 1 else ""
        numbers = f"{name}: {len(group)} x {unit_bytes:,} B{batches}"
        total_bytes = times * unit_bytes * len(group)
        formulas.append(sum_of("activations", inventory, total_bytes, numbers)._replace(source=source))
    return formulas


def sum_of(component: str, rows: Inventory, n_bytes: int, numbers: str) -> Formula:
    """Build a formula that adds up the tensors of an inventory, the largest first, equal ones as one term.

    ``component``: to which they belong. ``rows``: the inventory. ``n_bytes``, ``numbers``: of the formula.
    """
    bytes_by_term: dict[str, int] = {}
    for label, shape, dtype, size, _, _ in rows:
        term = f"{label} [{', '.join(map(_size, shape))}] {dtype}"
        bytes_by_term[term] = bytes_by_term.get(term, 0) + size
    terms = sorted(bytes_by_term, key=lambda term: -bytes_by_term[term])
    shown = " + ".join(terms[:10]) + (f" + {len(terms) - 10} smaller ones" if len(terms) > 10 else "")
    return Formula(
        component, shown or "no tensor of its own", numbers, bytes=n_bytes, source="torch 2.13 derivatives.yaml"
    )


def _size(size: int) -> str:
    """Return a size as reports show it: ``4096``, or ``T = 4096`` where it has a symbol."""
    symbol = getattr(size, "symbol", None)
    return f"{symbol} = {int(size)}" if symbol else str(int(size))
