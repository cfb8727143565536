"""A step, split into the resident tensors of a rank and what changes on top of them.

Resident bytes are the same at every instant, so that they decide neither which moment is the highest nor what lives
then. A step is walked once without them, and any resident bytes are added later. Of a grid's points many share the walk
(other states, other data-parallel ranks) and many share the states (other batches, other recompute).
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.estimate import Instant
from memcheck.accounts.segments import Unfilled
from memcheck.record import Record

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


def highest(rest: ResidentStates, tops: Sequence[tuple[str, int]], beside: Components = ()) -> int:
    """Bytes of the peak. ``tops``: bytes of each instant without ``rest``; ``beside``: what lives all step, but is not
    part of ``rest``.
    """
    most = 0
    for name, n_bytes in tops:
        if name == "optimizer":
            n_bytes += rest.temporaries
        most = max(most, n_bytes)
    for _, n_bytes in rest.components:
        most += n_bytes
    for _, n_bytes in beside:
        most += n_bytes
    return most


def peak_on(rest: ResidentStates, tops: Sequence[tuple[str, int]]) -> int:
    """Number of the instant that is the highest on top of ``rest``, the first of equal ones."""
    found, most = 0, -1
    for index, (name, n_bytes) in enumerate(tops):
        if name == "optimizer":
            n_bytes += rest.temporaries
        if n_bytes > most:
            found, most = index, n_bytes
    return found


def with_resident(rest: ResidentStates, moments: Sequence[Moment], beside: Components = ()) -> tuple[Instant, ...]:
    """The instants of the whole step."""
    start: dict[str, int] = {}
    base = 0
    for component, n_bytes in (*rest.components, *beside):
        if n_bytes:
            start[component] = start.get(component, 0) + n_bytes
            base += n_bytes
    found = []
    for name, operation, n_bytes, live in moments:
        total, every = base + n_bytes, start.copy()
        for component, part in live:
            every[component] = every.get(component, 0) + part
        if name == "optimizer":
            operation = rest.operation
            total += rest.temporaries
            every["temporaries"] = every.get("temporaries", 0) + rest.temporaries
        found.append(Instant(name, operation, total, {k: v for k, v in every.items() if v}))
    return tuple(found)
