"""What predictions were off by, and what the allocator kept on top, as data.

``data/residuals.json`` is written by ``python -m benchmarks.accuracy --write`` from every case of ``benchmarks/data``;
a test compares it with a fresh run. Nothing in the engine is fitted to it: it gives intervals their width, and the
allocator's share, for which there is no formula.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from memcheck.edge.own_json import read_own_json
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENOUGH = 8
"""A group with fewer cases is widened by the widest of its neighbours."""

SMALL_BYTES = 8 * 2**30
"""Differences are taken relative to at least this much: those of smaller jobs are buffers of constant size, and would
widen the intervals of large ones."""

COMPILED = "compiled/"
"""Family of compiled steps, whose errors say nothing about others: only some of what the compiler fuses is modelled."""

Table = Mapping[str, "Spread"]


class Spread(Record):
    """Ratios of measured to predicted bytes over all cases of one group: the lowest, the median and the highest."""

    n: int
    """Number of cases."""
    low: float
    median: float
    high: float

    def over(self, share: float) -> Spread:
        """Return the spread relative to a larger whole, of which the present denominator is ``share``, 0 to 1."""
        return self._replace(low=self.low * share, median=self.median * share, high=self.high * share)

    def plus(self, share: float, most: float) -> Spread:
        """Return the spread with ``share`` added to its median; its high rises by ``most`` if that is larger."""
        return self._replace(median=self.median + share, high=self.high + max(share, most))

    def no_more_than(self, most: float) -> Spread:
        """Return the spread with a median of at most ``most``; its high stays."""
        median = min(self.median, most)
        return self._replace(low=min(self.low, median), median=median)

    def or_higher(self, other: Spread) -> Spread:
        """Return a spread with the higher low, median and high of this spread and ``other``."""
        ends = [max(a, b) for a, b in zip(self[1:], other[1:], strict=True)]
        return Spread(self.n, *ends)


class Residuals(Record):
    """All tables of ``data/residuals.json``: a spread for each group of measured cases, by the group's name."""

    allocated: Table
    """One plus the difference between truth and predicted ``allocated``, over the latter but at least SMALL_BYTES, by
    ``family/kind``."""
    reserved: Table
    """Reserved over predicted ``allocated``, by kind of plan as the allocator sees it, with memory to spare."""
    tight: Table
    """Reserved over predicted ``allocated`` on the smallest GPU on which the step still runs: free segments are
    returned before it fails."""
    outside: Table
    """Measured over predicted bytes outside the allocator: ``context``, ``communicators``."""
    beyond: Table
    """What the step needs less one block as large as its largest, over its live tensors, and no less than one."""
    blocks: Table
    """One plus what cannot be returned, over the step's largest block, of sharded steps that gather twice."""
    held_blocks: Table
    """One plus what is held beyond live tensors with memory to spare, over the step's largest block, of steps on one
    stream that recompute: a layer and the logits come and go."""
    filled: Table
    """``tight`` without what the segments of resident blocks leave (``Pools.unfilled``), where that is known; also of
    steps that are highest in the optimizer.
    """


_cache: list[Residuals] = []


def residuals() -> Residuals:
    """Return the tables of ``data/residuals.json``, which is read once."""
    if not _cache:
        path = os.path.join(os.path.dirname(__file__), "data", "residuals.json")
        _cache.append(read(read_own_json(path)))
    return _cache[0]


def read(raw: Mapping[str, Any]) -> Residuals:
    """Build the tables from the JSON object of ``data/residuals.json``."""
    return Residuals(*({group: _spread(row) for group, row in raw[name].items()} for name in Residuals._fields))


def _spread(row: Mapping[str, Any]) -> Spread:
    """Build one group's spread from its JSON object."""
    return Spread(n=row["n"], low=row["low"], median=row["median"], high=row["high"])


KEPT = 1024
_found: dict[tuple[int, str], tuple[Table, LookedUp]] = {}
"""By identity of the table, which no one changes once it is read; an entry keeps its table, so that none other can have
that identity while the entry is there."""


class LookedUp(Record):
    """A spread, and the measured cases behind it."""

    groups: str
    """Names of the measured groups that the spread is based on."""
    spread: Spread


def look_up(table: Table, group: str, *, by_method: bool = False) -> LookedUp:
    """Return the spread of a group in a table.

    A group with fewer than ``ENOUGH`` cases borrows from its neighbours. ``by_method``: the table's groups are
    ``family/kind``; a group of adapters without cases also borrows from the adapters of every family.
    """
    known = _found.get((id(table), group))
    if known is None:
        if len(_found) >= KEPT:
            _found.clear()
        known = _found[id(table), group] = (table, _look_up(table, group, by_method=by_method))
    return known[1]


def _look_up(table: Table, group: str, *, by_method: bool) -> LookedUp:
    """Return what :func:`look_up` does, without its cache: the group's own spread if it has enough cases."""
    spread = table.get(group)
    if spread is not None and spread.n >= ENOUGH:
        return LookedUp(group, spread)
    from memcheck.memory.neighbours import borrowed

    return borrowed(table, group, by_method=by_method and spread is None)


def forget() -> None:
    """Read the file again next time; for the program that writes it."""
    _cache.clear()
