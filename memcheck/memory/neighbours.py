"""Spreads of kinds of plans with too few cases, from those of their neighbours."""

from __future__ import annotations

from memcheck.memory.residuals import COMPILED, ENOUGH, Spread, Table


def borrowed(table: Table, group: str) -> tuple[str, Spread]:
    """The spread of a group that has too few cases, and the groups that it is based on.

    Names are paths, from the family to the detail. A group with few cases, or none, borrows the extremes of the widest
    group that shares the longest part of its name, or else of all groups.
    """
    own, widest = table.get(group), _widest(table, group)
    if widest is None:
        return (group, own) if own is not None else ("no data", Spread(n=0, low=1.0, median=1.0, high=1.0))
    if own is None:
        return widest, table[widest]
    low, high = min(own.low, table[widest].low), max(own.high, table[widest].high)
    return f"{group} widened by {widest}", own._replace(low=low, high=high)


def _widest(table: Table, group: str) -> str | None:
    parts = group.split("/")
    for length in range(len(parts) - 1, -1, -1):
        prefix = "/".join(parts[:length])
        near = [
            name
            for name, spread in table.items()
            if name != group
            and spread.n >= ENOUGH
            and (name.startswith(f"{prefix}/") if prefix else name.startswith(COMPILED) == group.startswith(COMPILED))
        ]
        if near:
            return max(near, key=lambda name: table[name].high)
    return None
