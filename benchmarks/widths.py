"""How wide the interval of ``needed`` is, kind by kind, and what makes it so."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.cases import load
from benchmarks.score import Row
from memcheck.memory.allocator import SMALL_BYTES, Residuals, look_up, residuals, shares_of
from memcheck.memory.interval import Kinds, unreturnable_ratio_interval
from memcheck.memory.overhead import OutsideBytes

GIB = 2**30


class Terms(NamedTuple):
    """What one plan's interval is made of, each as a share of ``needed``."""

    block: float
    """The step's largest block."""
    below: float
    """What the allocator may hold less than its median share."""
    above: float
    """What it may hold more."""
    live: float
    """What live tensors may be off by, both sides together."""
    context: float
    communicators: float


def terms(tables: Residuals, row: Row) -> Terms:
    """One plan's, before the allocator's and the live tensors' are added in quadrature."""
    needed, allocated = row.needed_bytes, row.allocated_bytes
    kinds = Kinds(row.error_group, row.allocator_group, row.remainder_group, row.blocks_group)
    stuck = unreturnable_ratio_interval(tables, kinds, row.held, shares_of(tables, row.allocator_group))
    errors = look_up(tables.allocated, row.error_group, by_method=True)[1]
    nothing = OutsideBytes(0, 0, 0, read=row.outside.read)
    each = (nothing._replace(**{one: getattr(row.outside, one)}) for one in OUTSIDE)
    spans = [high - low for low, high in (bytes_.ends(tables) for bytes_ in each)]
    off = max(0.0, 1 - errors.low) + max(0.0, errors.high - 1)
    return Terms(
        row.pools.largest / needed,
        (stuck.median - max(1.0, stuck.low)) * allocated / needed,
        (stuck.high - stuck.median) * allocated / needed,
        off * max(allocated, SMALL_BYTES) / needed,
        *(span / needed for span in spans),
    )


OUTSIDE = ("context", "communicators")


def section(rows: Sequence[Row]) -> list[str]:
    """The section of RESULTS.md."""
    found = [
        "",
        "## How wide the intervals are",
        "",
        f"Of `needed` as a share of it, over the cases of this page with at least {SMALL_BYTES // GIB} GiB of live",
        "tensors, by how steps err and how the allocator sees them.",
        "*In one*: a single interval from live tensors to what may be seen, as it was before the cache stood apart,",
        "over what is seen. The other columns are medians, too: what the allocator may hold *below* and *above* its",
        "share, what *live* tensors may be off by on both sides (added to the former in quadrature), what *context*",
        "and communicators (*NCCL*) may; *block* is the largest block of the step, for comparison.",
        "",
        "| kind of plan | n | needed, median | widest | below | above | block | live | context | NCCL | in one |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    kinds: dict[str, list[Row]] = {}
    large = [row for row in rows if row.allocated_bytes >= SMALL_BYTES]
    for row in large:
        where = ", highest in the optimizer" if row.pools.before else ""
        kinds.setdefault(f"{row.error_group}; {row.allocator_group}{where}", []).append(row)
    for kind, mine in sorted(kinds.items()):
        found.append(f"| {kind} | {_line(mine)} |")
    return [*found, f"| **all** | {_line(large)} |"]


def by_kind(rows: Sequence[Row]) -> list[str]:
    """A table: the median width of ``needed`` of each kind by how steps err, and what it was before."""
    before = load("widths_before.json")["kinds"]
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        if row.allocated_bytes >= SMALL_BYTES:
            kinds.setdefault(kind_of(row), []).append(row)
    found = ["| kind of plan | cases | published | needed, median, before | now |", "|---|---|---|---|---|"]
    for kind, mine in sorted(kinds.items()):
        was = f"{before[kind]:.1%}" if kind in before else ""
        now, published = statistics.median(row.width for row in mine), sum(row.case.published for row in mine)
        found.append(f"| {kind} | {len(mine)} | {published} | {was} | {now:.1%} |")
    return found


def kind_of(row: Row) -> str:
    """How a step errs, and the allocator's setting."""
    return f"{row.error_group}; {row.allocator_group.rpartition('/')[2]}"


def _line(rows: Sequence[Row]) -> str:
    tables = residuals()
    each = [terms(tables, row) for row in rows]
    middle = Terms(*(statistics.median(values) for values in zip(*each, strict=True)))
    shown = (middle.below, middle.above, middle.block, middle.live, middle.context, middle.communicators)
    widths = [row.width for row in rows]
    ends = statistics.median(widths), max(widths)
    both = statistics.median(row.width_in_one for row in rows)
    return " | ".join([str(len(rows)), *(f"{share:.1%}" for share in (*ends, *shown, both))])
