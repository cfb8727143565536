"""Spreads of kinds of plans with too few cases, from those of their neighbours."""

from __future__ import annotations

from memcheck.memory.residuals import COMPILED, ENOUGH, Spread, Table


def borrowed(table: Table, group: str, *, by_method: bool = False) -> tuple[str, Spread]:
    """Return the spread of a group that has too few measured cases, after the names of the groups it is based on.

    Names are paths, from the family to the detail. A group with few cases, or none, borrows the extremes of the widest
    group that shares the longest part of its name, or else of all groups; ``by_method``: of a table by
    ``family/kind``, those of every family's adapters, too, if it is of adapters.
    """
    own, widest = table.get(group), _widest(table, group)
    if widest is None:
        return (group, own) if own is not None else ("no data", Spread(n=0, low=1.0, median=1.0, high=1.0))
    spread = own or table[widest]
    lenders = [table[name] for name in (widest, *(_of_method(table, group) if by_method else ()))]
    low, high = min(spread.low, *(name.low for name in lenders)), max(spread.high, *(name.high for name in lenders))
    words = widest if own is None else f"{group} widened by {widest}"
    return words, spread._replace(low=low, high=high)


def _of_method(table: Table, group: str) -> list[str]:
    """List the groups with enough cases, of all families, that train adapters by the same method (lora or qlora)."""
    method = _method(group)
    if method not in ("lora", "qlora"):
        return []
    return [name for name, spread in table.items() if spread.n >= ENOUGH and _method(name) == method and name != group]


def _method(group: str) -> str:
    """Return the method in a group's name: ``qlora`` of ``huggingface/qlora, sharded``."""
    return group.rpartition("/")[2].partition(",")[0]


def _widest(table: Table, group: str) -> str | None:
    """Find the group with the highest ratio among those that share the longest part of a group's name.

    Groups of compiled steps are compared with each other alone. None: no group has enough cases.
    """
    path = group.split("/")
    for length in range(len(path) - 1, -1, -1):
        prefix = "/".join(path[:length])
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
