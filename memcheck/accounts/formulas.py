"""Arithmetic of what units keep and hold, for ``--formulas``: the numbers put in, bytes, source."""

from __future__ import annotations

from memcheck.accounts.estimate import Formula, Instant
from memcheck.accounts.unit import Unit
from memcheck.autograd.curve import Inventory
from memcheck.record import Record


class UnitsInFlight(Record):
    """A unit whose saved tensors are alive, and the number of micro-batches in flight."""

    unit: Unit
    times: int = 1


def activation_formulas(kept: list[UnitsInFlight], peak: Instant, n_bytes: int, source: str) -> list[Formula]:
    """One line per kind of unit: what it keeps for backward."""
    where = peak.operation.rpartition(" in ")[2]
    alive: dict[tuple[Inventory, int], list[Unit]] = {}
    for one in kept:
        alive.setdefault((one.unit.fresh.saved_inventory, one.times), []).append(one.unit)
    found = [
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
        each = group[0].fresh.saved
        batches = f" x {times} micro-batches in flight" if times > 1 else ""
        numbers = f"{name}: {len(group)} x {each:,} B{batches}"
        found.append(sum_of("activations", inventory, times * each * len(group), numbers)._replace(source=source))
    return found


def sum_of(component: str, rows: Inventory, n_bytes: int, numbers: str) -> Formula:
    """One formula of several tensors."""
    sums: dict[str, int] = {}
    for label, shape, dtype, size, _, _ in rows:
        key = f"{label} [{', '.join(map(_size, shape))}] {dtype}"
        sums[key] = sums.get(key, 0) + size
    terms = [k for k, _ in sorted(sums.items(), key=lambda kv: -kv[1])]
    shown = " + ".join(terms[:10]) + (f" + {len(terms) - 10} smaller ones" if len(terms) > 10 else "")
    return Formula(
        component, shown or "no tensor of its own", numbers, bytes=n_bytes, source="torch 2.13 derivatives.yaml"
    )


def _size(size: int) -> str:
    """``4096``, or ``T = 4096`` where it has a symbol."""
    symbol = getattr(size, "symbol", None)
    return f"{symbol} = {int(size)}" if symbol else str(int(size))
