"""A rank's parameters, grouped by how Megatron's buffers treat them, with counts.

A mixture of experts has tens of thousands of tensors in a handful of sizes. What they take is asked for every layout
that a search looks at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import LocalTensor
from memcheck.record import Record


class Counted(Record):
    """Tensors of one size that go into one kind of buffer."""

    numel: int
    """Elements of each of the tensors."""
    trained: bool
    """The tensors get gradients and optimizer states."""
    expert: bool
    """The tensors belong to routed experts."""
    linear: bool
    """Weights of TransformerEngine's linear layers, which fp8 can hold."""
    rows: int
    """How many rows a matrix has that Muon updates: no table of words and no output layer; else 0."""
    times: int
    """Number of equal tensors."""


def counted(units: Iterable[tuple[LocalTensor, ...]]) -> list[Counted]:
    """Count the tensors of the units by kind; a tuple that several units share is looked at once."""
    unit_tensors = list(units)
    distinct = dict(zip(map(id, unit_tensors), unit_tensors, strict=True))
    times = Counter(map(id, unit_tensors))
    counts: dict[_Kind, int] = {}
    for number, tensors in distinct.items():
        for kind, count in _kinds(tensors).items():
            counts[kind] = counts.get(kind, 0) + times[number] * count
    return [Counted(*kind, count) for kind, count in counts.items()]


MATRIX = 2
REMEMBERED = 64
_Kind = tuple[int, bool, bool, bool, int]
_known: dict[int, tuple[tuple[LocalTensor, ...], dict[_Kind, int]]] = {}
"""By identity: to hash the tensors of a layer with hundreds of experts takes longer than to count them."""


TABLES = ("word_embeddings", "output_layer")


def _kinds(tensors: tuple[LocalTensor, ...]) -> dict[_Kind, int]:
    """Count a unit's tensors by kind: elements, training, experts, linear layers and Muon's rows.

    Equal layers share one tuple of tensors, so that the result is cached by its identity.
    """
    known = _known.get(id(tensors))
    if known is not None:
        _, counts = known
        return counts
    if len(_known) >= REMEMBERED:
        _known.clear()
    counts = {}
    for t in tensors:
        name, is_matrix = t.name, t.matrix
        updated = is_matrix and len(t.shape) == MATRIX and not (TABLES[0] in name or TABLES[1] in name)
        kind = (t.numel, t.trained, t.expert, is_matrix and "linear" in name, t.shape[0] if updated else 0)
        counts[kind] = counts.get(kind, 0) + 1
    _known[id(tensors)] = tensors, counts  # holds them, so that no others have their identity
    return counts


def elements(tensors: Iterable[Counted]) -> int:
    """Elements of all of them."""
    return sum([t.numel * t.times for t in tensors])


def runs_of(units: Sequence[Unit]) -> list[tuple[Unit, int]]:
    """Group consecutive units that are one object, as (unit, count)."""
    return [(run[0], len(run)) for run in (list(group) for _, group in groupby(units, key=id))]
