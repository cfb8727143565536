"""Figures per group, the tables behind intervals, and what they cover when a model family is left out."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.score import Row
from memcheck.accounts.estimate import Pools
from memcheck.memory.allocator import ADAPTERS, COMPILED, ENOUGH, SMALL_BYTES, Residuals, Spread, borrowed, look_up
from memcheck.memory.interval import Kinds, PlanFigures, ends
from memcheck.memory.overhead import NOTHING_OUTSIDE

COMPILED_APART = ", compiled/"
"""In the allocator's kind of compiled steps that have one of their own."""
RECOMPUTED = ("one stream/recompute/default", "one stream/recompute/expandable")
"""Kinds of steps in which one layer and the logits come and go."""
UNIT = 2**36
"""Bytes of a step without a size of its own."""
T_975 = (0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t at 97.5 % by degrees of freedom; 2.09 and below from 19 on, taken as 2.09."""


class Figures(NamedTuple):
    """One group."""

    n: int
    median: float
    """Of the absolute error."""
    p95: float
    worst: float
    unsafe: int
    """Truths above the interval's upper end."""
    inside: int
    phases: int
    """Cases whose moment of the peak is known."""
    agree: int
    """Of those, where the prediction names the same moment."""


def figures(rows: Sequence[Row]) -> Figures:
    """Of one group's rows."""
    errors = sorted(abs(r.error) for r in rows)
    known = [r for r in rows if r.phase_agrees is not None]
    return Figures(
        len(rows),
        errors[len(errors) // 2],
        errors[min(len(errors) - 1, int(len(errors) * 0.95))],
        errors[-1],
        sum(r.unsafe for r in rows),
        sum(r.inside for r in rows),
        len(known),
        sum(bool(r.phase_agrees) for r in known),
    )


def by_group(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of each group, in the order of their first case."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.case.group, []).append(row)
    return found


class Kept(NamedTuple):
    """What the allocator held in one step: replayed from its trace."""

    id: str
    family: str
    group: str
    reserved: float
    """Reserved over the highest points of all streams together, with memory to spare."""
    tight: float
    """The smallest memory on which the step runs, over what is live at the moment that fails first on less."""
    unfilled: float
    """What the segments of resting blocks leave, over what is live."""
    most: float
    """Likewise, if each had needed a new segment."""
    held: str
    """The kind under which ``reserved`` counts; empty: under none."""
    stuck: str
    """The kind under which ``tight`` counts."""
    remainder: str = ""
    """The kind under which ``beyond`` counts; empty: under none."""
    blocks: str = ""
    """The kind under which ``of_block`` counts; empty: under none."""
    block: float = 0.0
    """The step's largest block over what is live at that moment."""

    @property
    def filled(self) -> float:
        """``tight`` without what the segments of resting blocks leave."""
        return max(1.0, self.tight - self.unfilled)

    @property
    def beyond(self) -> float:
        """``filled`` less the largest block, and no less than one."""
        return max(1.0, self.filled - self.block)

    def of_block(self, share: float) -> float:
        """One plus what cannot be returned over the largest block."""
        return 1 + max(0.0, share - 1) / self.block


def spread(ratios: Sequence[float]) -> Spread:
    """The middle of some ratios, and where 95 % of further ones are expected, on a logarithmic scale.

    The upper end is not below the largest ratio seen: being too low is what the interval must avoid. A few cases say
    nothing about their tails; then both ends are the extremes, and whoever uses them adds those of a neighbour.
    """
    logs = sorted(math.log(r) for r in ratios)
    n = len(logs)
    middle = (logs[(n - 1) // 2] + logs[n // 2]) / 2
    low, high = logs[0], logs[-1]
    if n >= ENOUGH:
        mean = sum(logs) / n
        deviation = math.sqrt(sum((x - mean) ** 2 for x in logs) / (n - 1))
        width = (T_975[n - 1] if n - 1 < len(T_975) else 2.09) * deviation * math.sqrt(1 + 1 / n)
        low, high = min(mean - width, logs[int(0.025 * n)]), max(mean + width, high)
    return Spread(n, _down(math.exp(low)), round(math.exp(middle), 4), _up(math.exp(high)))


def _down(value: float) -> float:
    return math.floor(value * 10000) / 10000


def _up(value: float) -> float:
    return math.ceil(value * 10000) / 10000


def difference(truth: float, predicted: int, least: int = SMALL_BYTES) -> float:
    """One plus the relative difference; relative to a few GiB at least."""
    return 1 + (truth - predicted) / max(predicted, least)


Readings = Sequence[tuple[str, float]]
"""Of what is outside the allocator: ``context`` or ``communicators``, and measured over predicted."""


TRACES = "traces"
"""All traced cases of a kind, as one piece of evidence."""


def tables(rows: Sequence[Row], kept: Iterable[Kept], outside: Readings) -> Residuals:
    """The tables of ``memcheck/memory/data/residuals.json``.

    The allocator's middle share comes from replayed steps alone where there are any, so that published reserved figures
    remain a test of it; they widen its ends. Compiled sharded steps cannot be replayed: what they hold is what was
    published, and counts as an error of ``allocated``, too. Errors of ``allocated`` count by evidence: each published
    reading, and all traces of a kind as one, however many somebody made; so a kind with traces alone is widened by its
    neighbours. Where passes of an experiment decide what is kept, or where
    the allocator held less than was predicted as live, a reserved figure is an error of ``allocated`` alone.
    """
    reserved: dict[str, list[float]] = {}
    tight: dict[str, list[float]] = {}
    beyond: dict[str, list[float]] = {}
    blocks: dict[str, list[float]] = {}
    filled: dict[str, list[float]] = {}
    of_filled: dict[str, list[float]] = {}
    held: dict[str, list[float]] = {}
    for step in kept:
        if step.held in RECOMPUTED and step.block:
            held.setdefault(step.held, []).append(step.of_block(step.reserved))
        if step.remainder:
            beyond.setdefault(step.remainder, []).append(step.beyond)
        if step.blocks:
            blocks.setdefault(step.blocks, []).append(step.of_block(step.tight))
            of_filled.setdefault(step.blocks, []).append(step.of_block(step.filled))
        if step.held:
            reserved.setdefault(step.held, []).append(step.reserved)
        tight.setdefault(step.stuck, []).append(step.tight)
        filled.setdefault(step.stuck, []).append(step.filled)
    replayed = {group: spread(found).median for group, found in reserved.items()}
    for row in rows:
        if row.case.metric == "reserved" and row.case.widens and _counts_for_allocator(row):
            reserved.setdefault(row.held_group, []).append(row.ratio)
    shares = {group: _with_middle(spread(found), replayed.get(group)) for group, found in sorted(reserved.items())}
    allocated: dict[str, list[float]] = {}
    evidence: dict[str, set[str]] = {}
    for row in rows:
        if not row.case.widens:
            continue
        evidence.setdefault(row.error_group, set()).add(row.case.id if row.case.published else TRACES)
        truth = float(row.case.truth_bytes)
        if row.case.metric == "reserved":
            if _counts_for_allocator(row) and row.ratio >= 1 and not _compiled(row):
                continue
            _, share = look_up(shares, row.held_group)
            truth = truth / share.median - row.pools.apart
        least = 1 if row.case.small else SMALL_BYTES
        allocated.setdefault(row.error_group, []).append(difference(truth, row.allocated_bytes, least))
    around: dict[str, list[float]] = {}
    for kind, ratio in outside:
        around.setdefault(kind, []).append(ratio)
    stuck = _stuck(tight, replayed)
    return Residuals(
        allocated=_by_evidence(_spreads(allocated), {group: len(each) for group, each in evidence.items()}),
        reserved=shares,
        tight=stuck,
        outside=_around(around),
        beyond=_spreads(beyond),
        blocks=_with_lower(_spreads(of_filled), _spreads(blocks)),
        held_blocks=_spreads(held),
        filled=_with_lower(_stuck(filled, replayed), stuck),
    )


def _by_evidence(found: dict[str, Spread], evidence: Mapping[str, int]) -> dict[str, Spread]:
    """Spreads of kinds with little evidence, widened by their neighbours with much; how many cases each has stays."""
    counted = {group: each._replace(n=evidence[group]) for group, each in found.items()}
    return {
        group: each if evidence[group] >= ENOUGH else borrowed(counted, group, by_method=True)[1]._replace(n=each.n)
        for group, each in found.items()
    }


def _with_lower(found: dict[str, Spread], whole: dict[str, Spread]) -> dict[str, Spread]:
    """Lower ends are of all that cannot be returned: what segments leave may be in use."""
    return {group: spread._replace(low=min(spread.median, whole[group].low)) for group, spread in found.items()}


def _stuck(ratios: dict[str, list[float]], held: Mapping[str, float]) -> dict[str, Spread]:
    """What cannot be returned: recomputation widens its ends, and its middle is that of all steps on these streams.

    So a need grows with every byte that is live, also where recomputing less is what makes more of them live. It is no
    more than the middle of what any of these kinds has ``held``. A kind with few cases has the ends of all, too.
    """
    pools: dict[str, list[float]] = {}
    most: dict[str, float] = {}
    for group, found in ratios.items():
        pool = _pool(group)
        pools.setdefault(pool, []).extend(found)
        most[pool] = min(most.get(pool, math.inf), held.get(group, math.inf))
    all_of = {group: spread(pools[_pool(group)]).no_more_than(max(1.0, most[_pool(group)])) for group in ratios}
    return {
        group: found._replace(median=min(found.high, all_of[group].median)) if found.n >= ENOUGH else all_of[group]
        for group, found in _spreads(ratios).items()
    }


def _around(ratios: dict[str, list[float]]) -> dict[str, Spread]:
    """What is outside the allocator: with few readings each kind may be as much above its formula as any."""
    high = max((ratio for found in ratios.values() for ratio in found), default=1.0)
    return {kind: found._replace(high=_up(max(found.high, high))) for kind, found in _spreads(ratios).items()}


def _pool(group: str) -> str:
    """``sharded/recompute/default`` without what is recomputed."""
    streams, _, rest = group.partition("/")
    return f"{streams}{ADAPTERS if ADAPTERS in group else ''}/{rest.rpartition('/')[2]}"


def _with_middle(found: Spread, middle: float | None) -> Spread:
    return found if middle is None else found._replace(median=middle)


def _compiled(row: Row) -> bool:
    return row.error_group.startswith(COMPILED)


def _counts_for_allocator(row: Row) -> bool:
    """Whether a reading of reserved memory tells of the allocator, and not of what is live."""
    return not _compiled(row) or COMPILED_APART in row.allocator_group


def _spreads(ratios: dict[str, list[float]]) -> dict[str, Spread]:
    return {group: spread(found) for group, found in sorted(ratios.items())}


def as_json(found: Residuals) -> dict[str, Any]:
    """The form in which they are stored."""
    stored: dict[str, Any] = {
        "about": "Ratios of truth to prediction; written by python -m benchmarks.accuracy --write, never by hand.",
    }
    for name, table in found._asdict().items():
        stored[name] = {group: row._asdict() for group, row in table.items()}
    return stored


class Half(NamedTuple):
    """Replayed steps of some model families against the ends of ``needed`` that the other half of them gives."""

    families: tuple[str, ...]
    n: int
    above: int
    """Steps that need more than the upper end."""
    above_share: int
    """Likewise without what follows from the largest block."""
    width: float
    """Median distance of the ends, over allocated."""
    width_share: float


def in_halves(rows: Sequence[Row], kept: Sequence[Kept], outside: Readings) -> list[Half]:
    """What the allocator cannot return, as the other half of the families has it: every second one by name."""
    steps = [k for k in kept if k.remainder]
    families = sorted({k.family for k in steps})
    found = []
    for mine in (tuple(families[::2]), tuple(families[1::2])):
        others = [k for k in kept if k.family not in mine]
        made = tables([r for r in rows if family_of(r) not in mine], others, outside)
        by_share = made._replace(beyond={}, blocks={})
        ends_of = {k: (_stuck_ends(made, k), _stuck_ends(by_share, k)) for k in steps if k.family in mine}
        found.append(
            Half(
                mine,
                len(ends_of),
                *(sum(k.tight > each[i][1] for k, each in ends_of.items()) for i in (0, 1)),
                *(statistics.median([each[i][1] - each[i][0] for each in ends_of.values()]) for i in (0, 1)),
            )
        )
    return found


def _stuck_ends(made: Residuals, step: Kept) -> tuple[float, float]:
    """Both ends of what a step without other errors needs, over allocated."""
    block, unfilled, most = (int(share * UNIT) for share in (step.block, step.unfilled, step.most))
    held = PlanFigures(UNIT, NOTHING_OUTSIDE, Pools(largest=block, unfilled=unfilled, unfilled_most=most))
    low, high = ends(made._replace(allocated={}), Kinds("", step.group, step.remainder, step.blocks), held, None).needed
    return low / UNIT, high / UNIT


class LeftOut(NamedTuple):
    """One model family, or one source of readings, against intervals made without it."""

    family: str
    n: int
    inside: int
    above: int


def leave_one_family_out(rows: Sequence[Row], kept: Sequence[Kept], outside: Readings) -> list[LeftOut]:
    """Coverage of the interval for families that its tables have not seen."""
    found = []
    for family in sorted({family_of(r) for r in rows}):
        made = tables([r for r in rows if family_of(r) != family], [k for k in kept if k.family != family], outside)
        found.append(_covered(family, [r for r in rows if family_of(r) == family], made))
    return found


def leave_one_source_out(rows: Sequence[Row], kept: Sequence[Kept], outside: Readings) -> list[LeftOut]:
    """Coverage of the interval for published readings of a project that its tables have not seen."""
    found = []
    for source in sorted({source_of(r) for r in rows if r.case.published}):
        mine = [r for r in rows if r.case.published and source_of(r) == source]
        made = tables([r for r in rows if not r.case.published or source_of(r) != source], kept, outside)
        found.append(_covered(source, mine, made))
    return found


def _covered(name: str, rows: Sequence[Row], made: Residuals) -> LeftOut:
    """How many of the rows lie inside of intervals from given tables."""
    inside = above = 0
    for row in rows:
        kinds = Kinds(row.error_group, row.allocator_group, row.remainder_group, row.blocks_group)
        there = row._replace(intervals=ends(made, kinds, row.held, row.capacity_bytes))
        above += there.unsafe
        inside += there.inside
    return LeftOut(name, len(rows), inside, above)


def source_of(row: Row) -> str:
    """The project that published a reading: ``pytorch/torchtitan``."""
    return re.split(r"[ #:@]", row.case.source, maxsplit=1)[0]


def family_of(row: Row) -> str:
    """The model family of a case."""
    if row.case.family:
        return row.case.family
    model = row.case.plan["model"]
    if isinstance(model, str):
        return model.split("-")[0].rstrip("0123456789.")
    if "name" in model:
        return str(model["name"]).split("-")[0].rstrip("0123456789.")
    return str(model["architecture"]["model_type"]).split("_")[0].rstrip("0123456789.")
