"""What one pipeline rank runs: its units, each with its resident tensors and the curve of what it computes."""

from __future__ import annotations

from memcheck.accounts.estimate import Formula, Instant
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.curve import Curve, Inventory
from memcheck.record import Record

IDLE = "resting"
"""Layers that do not run: groups of their own, which are never gathered."""
NEVER_GATHERED = (IDLE, "beside")
"""Groups that are never gathered: layers that do not run, and resident tensors that are no layer."""
WRAPPED = ("block", "tower", "gathered", "idle", IDLE, "encoder")
"""Kinds of units that FSDP makes groups of their own of: layers, by ``_no_split_modules``."""
TOWERS = ("tower", "gathered", "idle", IDLE)
"""Kinds of FSDP units that are layers of a vision or audio tower."""
OF_LANGUAGE = ("block", "encoder")
"""Kinds of FSDP units that are layers of the language model or of an encoder."""
OF_TOWER = (
    "stem", "tower", "gathered", "idle", IDLE, "beside", "merger", "projector", "source", "encoder", "encoded",
)  # fmt: skip
"""Kinds of units between the look-up of the text and the first layer, or before both."""
NUMBERED = {
    "block": "layer", "tower": "vision layer", "gathered": "vision layer", "idle": "idle layer",
    IDLE: "idle layer", "beside": "idle part", "encoder": "encoder layer",
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
    reduced: str = ""
    """A tensor whose gradient is already reduced when the unit's forward ends."""
    adapted: bool = False
    """Whether the unit's own parameters are frozen while its input is saved for a recompute."""
    offloaded_bytes: int = 0
    """Bytes that its forward sends to the host and its backward fetches (activation offload)."""


class Part(Record):
    """Which layers a pipeline rank holds."""

    first: int
    """The number of the first layer."""
    last: int
    """The number after that of the last layer."""
    embedding: bool
    """The rank holds the embedding."""
    head: bool
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
