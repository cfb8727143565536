"""A pipeline rank: its resident tensors, its step on top of them, and the rank with the highest peak.

Resident bytes are the same at every instant, so that they decide neither which moment is the highest nor what lives
then. A step is walked once without them, and any resident bytes are added later. Of a grid's points many share the walk
(other states, other data-parallel ranks) and many share the states (other batches, other recompute).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf

from memcheck.accounts.estimate import Instant
from memcheck.accounts.segments import Unfilled
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from memcheck.autograd.curve import Peak
    from memcheck.job.types import TrainingJob

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

Components = tuple[tuple[str, int], ...]


class Moment(Record):
    """The highest point of one instant, without the resident bytes."""

    name: str
    operation: str
    bytes: int
    live: Components
    """In the order in which they were first held, those that are empty included."""


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
_held: dict[tuple[tuple[int, int], ...], ResidentTensors] = {}


def interned(runs: Sequence[tuple[Tensors, int]]) -> ResidentTensors:
    """One object for all ranks that hold equal tensors.

    It is found by the identity of its tuples, of which equal ones are made one. An entry keeps its tuples alive, so
    that no identity in its key can come to stand for another tuple while the entry is there.
    """
    if len(_held) >= REMEMBERED or len(_tuples) >= REMEMBERED:
        forget()
    ones = {id(tensors): tensors for tensors, _ in runs}
    for own, tensors in ones.items():
        if own not in _canonical:  # to hash the tensors of hundreds of experts takes longer than to add them up
            ones[own] = _tuples.setdefault(tensors, tensors)
            _canonical.add(id(ones[own]))
    same = tuple([(ones[id(tensors)], times) for tensors, times in runs])
    key = tuple([(id(tensors), times) for tensors, times in same])
    found = _held.get(key)
    if found is None:
        found = _held[key] = ResidentTensors(same)
    return found


def forget() -> None:
    """Let go of everything that is kept here."""
    _held.clear()
    _tuples.clear()
    _canonical.clear()


def highest(resident: ResidentStates, tops: Tops, all_step: Components = ()) -> int:
    """Bytes of the peak. ``tops``: bytes of each instant without ``resident``; ``all_step``: what lives all step, and
    is not in ``resident``.
    """
    most = 0
    for name, n_bytes in tops:
        if name == "optimizer":
            n_bytes += resident.temporaries
        most = max(most, n_bytes)
    for _, n_bytes in resident.components:
        most += n_bytes
    for _, n_bytes in all_step:
        most += n_bytes
    return most


def peak_on(resident: ResidentStates, tops: Tops) -> int:
    """Number of the instant that is the highest on top of ``resident``, the first of equal ones."""
    found, most = 0, -1
    for index, (name, n_bytes) in enumerate(tops):
        if name == "optimizer":
            n_bytes += resident.temporaries
        if n_bytes > most:
            found, most = index, n_bytes
    return found


def with_resident(
    resident: ResidentStates, moments: Sequence[Moment], all_step: Components = ()
) -> tuple[Instant, ...]:
    """The instants of the whole step."""
    start: dict[str, int] = {}
    base = 0
    for component, n_bytes in (*resident.components, *all_step):
        if n_bytes:
            start[component] = start.get(component, 0) + n_bytes
            base += n_bytes
    found = []
    for name, operation, n_bytes, live in moments:
        total, every = base + n_bytes, start.copy()
        for component, part in live:
            every[component] = every.get(component, 0) + part
        if name == "optimizer":
            operation = resident.operation
            total += resident.temporaries
            every["temporaries"] = every.get("temporaries", 0) + resident.temporaries
        found.append(Instant(name, operation, total, {k: v for k, v in every.items() if v}))
    return tuple(found)


class Always(Record):
    """Bytes that live all step: some, and some for each micro-batch."""

    component: str
    bytes: int
    each: int = 0


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
        self.number, self.step, self.tensors, self.always = number, step, tensors, always
        self.parameters, self.host_bytes = parameters, host_bytes

    @property
    def tops(self) -> Tops:
        """Each instant and its bytes."""
        return self.step.tops

    def high(self, instant: str) -> Peak | None:
        """The unit's highest point that an instant's is, if it is one."""
        names = [name for name, _ in self.tops]
        return self.step.high(names.index(instant)) if instant in names else None

    def live_all_step(self, micro_batches: int) -> Components:
        """Bytes by component that are live during the whole step, without the states."""
        return tuple([(a.component, a.bytes + a.each * micro_batches) for a in self.always])


class RankStates:
    """What follows from the states of a ``state_key`` job alone, kept for all of its ranks."""

    __slots__ = ("_known", "_states_of", "job")

    def __init__(self, job: TrainingJob, states_of: Callable[[TrainingJob, ResidentTensors], ResidentStates]) -> None:
        self.job, self._states_of = job, states_of
        self._known: dict[ResidentTensors, ResidentStates] = {}

    def resident(self, tensors: ResidentTensors) -> ResidentStates:
        """The states of a rank with these tensors."""
        found = self._known.get(tensors)
        if found is None:
            found = self._known[tensors] = self._states_of(self.job, tensors)
        return found


class RankAtPeak(Record):
    """A rank with its states, and its highest point."""

    peak: int
    """Bytes of the highest point of the step."""
    before: int
    """Bytes of a moment before the step, which may be higher."""
    rank: RankPeak
    resident: ResidentStates
    always: Components
    """Bytes that are live during the whole step, without the states."""

    def instants(self) -> tuple[Instant, ...]:
        """Every instant of the step."""
        step = self.rank.step
        return with_resident(self.resident, [step.moment(i) for i in range(len(step.tops))], self.always)

    def instant(self) -> tuple[Instant, ...]:
        """The highest instant alone."""
        highest_one = peak_on(self.resident, self.rank.tops)
        return with_resident(self.resident, (self.rank.step.moment(highest_one),), self.always)

    def bytes_of(self, tops: Tops) -> int:
        """The peak of some instants, given their bytes without the resident ones."""
        return highest(self.resident, tops, self.always)


def at_peak(rank: RankPeak, states: RankStates, micro_batches: int, before: int = 0) -> RankAtPeak:
    """A rank with its states. ``before``: bytes of a moment before the step."""
    resident, always = states.resident(rank.tensors), rank.live_all_step(micro_batches)
    peak = highest(resident, rank.tops, always)
    return RankAtPeak(peak=peak, before=before, rank=rank, resident=resident, always=always)


def highest_rank(
    ranks: Iterable[RankPeak], states: RankStates, micro_batches: int, before: BytesBefore | None = None
) -> RankAtPeak:
    """The rank with the highest peak, the first of equal ones. ``before``: bytes of a moment before the step.

    A step whose ceiling is below the best peak so far is not recorded.
    """
    best: RankAtPeak | None = None
    for rank in ranks:
        made = 0 if before is None else before(rank)
        if best is None:
            best = at_peak(rank, states, micro_batches, made)
            continue
        least = max(best.peak, best.before)
        if made <= least and _most(rank, states, micro_batches) <= least:
            continue
        found = at_peak(rank, states, micro_batches, made)
        if max(found.peak, made) > least:
            best = found
    assert best is not None  # noqa: S101 - a job has ranks
    return best


def _most(rank: RankPeak, states: RankStates, micro_batches: int) -> float:
    """Bytes that the rank's peak does not exceed."""
    ceiling = rank.step.ceiling
    if ceiling == inf:
        return ceiling
    resident = states.resident(rank.tensors)
    held = sum([n_bytes for _, n_bytes in (*resident.components, *rank.live_all_step(micro_batches))])
    return held + resident.temporaries + ceiling
