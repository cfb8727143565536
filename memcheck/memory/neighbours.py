"""Spreads of kinds of plans with too few cases, from those of their neighbours."""

from __future__ import annotations

from memcheck.memory.allocator import COMPILED, ENOUGH, LookedUp, Spread, Table


def borrowed(table: Table, group: str, *, by_method: bool = False) -> LookedUp:
    """Return a spread for a group that has too few measured cases, borrowed from its neighbours.

    A group's name is a path, from the family to the detail. The spread is widened to the extremes of a neighbour: the
    widest group that shares the longest part of the path, or else the widest of all. ``by_method``: groups of adapters
    are also widened by every family's adapters of the same method.
    """
    own, widest = table.get(group), _widest(table, group)
    if widest is None and own is not None:
        return LookedUp(group, own)
    if widest is None:
        return LookedUp("no data", Spread(n=0, low=1.0, median=1.0, high=1.0))
    spread = own or table[widest]
    neighbours = [table[widest]]
    if by_method:
        neighbours += [table[name] for name in _of_method(table, group)]
    low = min(spread.low, *(neighbour.low for neighbour in neighbours))
    high = max(spread.high, *(neighbour.high for neighbour in neighbours))
    based_on = widest if own is None else f"{group} widened by {widest}"
    return LookedUp(based_on, spread._replace(low=low, high=high))


def _of_method(table: Table, group: str) -> list[str]:
    """List the groups with enough cases, of all families, that train adapters by the same method (lora or qlora)."""
    method = _method(group)
    if method not in ("lora", "qlora"):
        return []
    return [name for name, spread in table.items() if spread.n >= ENOUGH and _method(name) == method and name != group]


def _method(group: str) -> str:
    """Return the last word of a group's name without its detail: ``qlora`` of ``huggingface/qlora, sharded``."""
    return group.rpartition("/")[2].partition(",")[0]


def _widest(table: Table, group: str) -> str | None:
    """Find the group with the highest ratio among those that share the longest part of a group's name.

    Groups of compiled steps are compared with each other alone. None: no group has enough cases.
    """
    path = group.split("/")
    candidates = [name for name, spread in table.items() if name != group and spread.n >= ENOUGH]
    for length in range(len(path) - 1, 0, -1):
        prefix = "/".join(path[:length]) + "/"
        near = [name for name in candidates if name.startswith(prefix)]
        if near:
            return max(near, key=lambda name: table[name].high)
    of_family = [name for name in candidates if name.startswith(COMPILED) == group.startswith(COMPILED)]
    return max(of_family, key=lambda name: table[name].high, default=None)
