"""A verification as people read it, and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memcheck import __version__
from memcheck.accounts.estimate import COMPONENTS, Instant
from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen, gib, words
from memcheck.memory.overhead import slack
from memcheck.record import Record
from memcheck.report import text
from memcheck.report.json import tensors
from memcheck.report.story import PlanHead, Prose
from memcheck.report.story.blocks import Block, Fact, Facts, Table
from memcheck.report.story.memory import largest
from memcheck.verify.compare import (
    MEASURED,
    ComponentDifference,
    Observation,
    RankComparison,
    RankObservation,
    instants,
    sentence,
)
from memcheck.verify.observe import Request
from memcheck.verify.replay.runs import HeldMemory, held
from memcheck.verify.stand_in import StandIn
from memcheck.verify.subject import Subject


class Replayed(Record):
    """One rank's step through torch's caching allocator, in bytes."""

    held: HeldMemory
    expandable: bool
    needed_bytes: int
    """The smallest memory on which the steps survive, with context, libraries and communicators."""
    seen_bytes: int
    """What the GPU shows: with what the allocator keeps as far as there is room."""
    capacity_bytes: int


def replayed(request: Request, observed: RankObservation) -> Replayed | None:
    """None of a run whose allocations were not followed."""
    if not observed.events:
        return None
    subject, job = request.subject, request.job
    found = held(list(observed.events), expandable=job.expandable_segments)
    outside = slack(job, subject.gpu, subject.overhead, found.allocated).context_and_nccl
    needed = found.needed + outside
    capacity = subject.gpu.memory_bytes
    seen = max(needed, min(found.reserved + outside, capacity))
    return Replayed(
        held=found,
        expandable=job.expandable_segments,
        needed_bytes=needed,
        seen_bytes=seen,
        capacity_bytes=capacity,
    )


def render_json(
    request: Request,
    observation: Observation,
    comparisons: tuple[RankComparison, ...],
    tolerance: float,
) -> str:
    """One document. Fields may be added, never renamed or removed within ``verify: 1``."""
    found = {
        "verify": 1,
        "memcheck": __version__,
        "path": request.subject.path,
        "name": request.subject.name,
        "mode": observation.mode,
        "device": observation.device,
        "versions": observation.versions,
        "notes": list(observation.notes),
        "replaced": [item._asdict() for item in request.replaced],
        "tolerance": tolerance,
        "agrees": all(c.agrees(tolerance) for c in comparisons),
        "each": [_figures(seen) for seen in observation.each],
        "ranks": [
            {**_rank_json(c, observation, tolerance), "replayed": _replayed_json(replayed(request, c.observed))}
            for c in comparisons
        ],
    }
    return dumps(found, indent=1) + "\n"


def _rank_json(comparison: RankComparison, observation: Observation, tolerance: float) -> dict[str, Any]:
    observed = comparison.observed
    return {
        "pipeline_rank": observed.pipeline_rank,
        "rank": observed.rank,
        "agrees": comparison.agrees(tolerance),
        "error": round(comparison.error, 6),
        "predicted": {
            "allocated_bytes": comparison.predicted_bytes,
            "instant": comparison.predicted.peak.name,
            "instants": [_instant(i) for i in comparison.predicted.instants],
        },
        "observed": {
            "allocated_bytes": comparison.observed_bytes,
            "reserved_bytes": observed.reserved_bytes,
            "device_bytes": observed.device_bytes,
            "instant": observed.peak.name,
            "operation": observed.peak.operation,
            "instants": [_instant(i) for i in observed.instants],
            "parameters": observed.parameters,
            "operators": observed.operators,
            "largest_tensors": [tensors(group) for group in observed.largest],
            "seconds": observed.seconds,
        },
        "terms": [_term(term) for term in comparison.terms],
        "sentence": sentence(comparison, observation.mode),
    }


def _replayed_json(found: Replayed | None) -> dict[str, Any] | None:
    """The allocator's part, from the rank's own allocations; none where they were not followed."""
    if found is None:
        return None
    return {
        "expandable_segments": found.expandable,
        "allocated_bytes": found.held.allocated,
        "reserved_bytes": found.held.reserved,
        "smallest_bytes": found.held.needed,
        "streams_bytes": list(found.held.streams),
        "needed_bytes": found.needed_bytes,
        "seen_bytes": found.seen_bytes,
        "capacity_bytes": found.capacity_bytes,
    }


def _figures(seen: RankObservation) -> dict[str, Any]:
    return {
        "rank": seen.rank,
        "pipeline_rank": seen.pipeline_rank,
        "allocated_bytes": seen.peak.allocated_bytes,
        "reserved_bytes": seen.reserved_bytes,
        "device_bytes": seen.device_bytes,
    }


def _instant(instant: Instant) -> dict[str, Any]:
    return {
        "name": instant.name,
        "operation": instant.operation,
        "allocated_bytes": instant.allocated_bytes,
        "components_bytes": instant.components_bytes,
    }


def _term(term: ComponentDifference) -> dict[str, Any]:
    return {**term._asdict(), "difference_bytes": term.difference}


Row = tuple[str, ...]


def render_text(
    request: Request,
    observation: Observation,
    comparisons: tuple[RankComparison, ...],
    tolerance: float,
    screen: Screen,
) -> str:
    """Heading, what was run instead, one section per rank, the verdict."""
    groups: list[tuple[Block | None, ...]] = [_heading(request.subject, observation), _replaced(request.replaced)]
    for comparison in comparisons:
        groups += _rank(comparison, observation)
        groups.append((_replayed(replayed(request, comparison.observed)),))
    groups.append((_each(observation),))
    groups.append((_verdict(comparisons, tolerance),))
    return text.document(groups, screen) + "\n"


def _heading(subject: Subject, observation: Observation) -> tuple[Block, ...]:
    stack = ", ".join(f"{k} {v}" for k, v in observation.versions.items() if k not in ("memcheck", "python"))
    how = f"on {observation.device}" if observation.mode == MEASURED else "on fake tensors"
    told = (f"{observation.mode} {how}: {stack}", *observation.notes)
    return PlanHead(subject.name, subject.path), *map(Prose, told)


def _replaced(replaced: tuple[StandIn, ...]) -> tuple[Block, ...]:
    if not replaced:
        return ()
    rows = tuple(Fact(item.key, f"{item.asked} -> {item.instead} ({item.why})") for item in replaced)
    lead = "what cannot be run here was replaced; prediction and observation are both of the stand-in"
    return Prose(lead, "dim"), Facts(rows)


def _rank(comparison: RankComparison, observation: Observation) -> list[tuple[Block | None, ...]]:
    observed = comparison.observed
    where = f"pipeline rank {observed.pipeline_rank}" if len(observation.ranks) > 1 else f"rank {observed.rank}"
    verb = observation.mode
    head = ("", "predicted", verb, "difference", "")
    rows = [
        (words(name), _gib(said), _gib(seen), _change(said, seen), operation)
        for name, said, seen, operation in instants(comparison)
    ]
    found: list[tuple[Block | None, ...]] = [
        (_table(f"allocated at each instant of a step, {where} (GiB)", head, rows),)
    ]
    peak = observed.peak
    if peak.components_bytes:
        at_peak = {t.component: t for t in comparison.terms if t.instant == peak.name}
        shown = [at_peak[c] for c in COMPONENTS if c in at_peak]
        rows = [
            (words(t.component), gib(t.predicted_bytes), gib(t.observed_bytes), _signed(t.difference), "")
            for t in shown
        ]
        found.append((_table(f"components in {peak.name}, {where} (GiB)", head, rows),))
    told = [Fact("largest difference", sentence(comparison, verb)), *_measured(comparison)]
    found.append((Facts(tuple(told)),))
    found.append((largest(observed.largest, f"largest {verb} tensors at the peak (GiB)"),))
    return found


def _measured(comparison: RankComparison) -> list[Fact]:
    observed = comparison.observed
    if observed.reserved_bytes is None:
        return []
    told = f"max reserved {gib(observed.reserved_bytes)} GiB"
    if observed.device_bytes is not None:
        told += f", device memory used {gib(observed.device_bytes)} GiB"
    return [Fact("allocator", told)]


def _replayed(found: Replayed | None) -> Facts | None:
    """What torch's allocator makes of the rank's own allocations."""
    if found is None:
        return None
    segments = "expandable segments" if found.expandable else "default segments"
    held = f"reserved {gib(found.held.reserved)} GiB with memory to spare, {gib(found.held.needed)} on the smallest GPU"
    told = (
        f"needed {gib(found.needed_bytes)} GiB, seen {gib(found.seen_bytes)} of {gib(found.capacity_bytes)}: the traced"
        f" allocations replayed ({segments}; {held}), with context, libraries and communicators as predicted"
    )
    return Facts((Fact("allocator", told),))


def _each(observation: Observation) -> Table | None:
    """Every process of a measurement."""
    if len(observation.each) < 2:
        return None
    head = ("", "allocated", "reserved", "device", "")
    rows = [
        (
            f"rank {seen.rank}",
            gib(seen.peak.allocated_bytes),
            _gib(seen.reserved_bytes),
            _gib(seen.device_bytes),
            f"pipeline rank {seen.pipeline_rank}",
        )
        for seen in observation.each
    ]
    return _table("every rank (GiB)", head, rows)


def _table(caption: str, heads: Row, rows: Sequence[Row]) -> Table:
    return Table(caption, heads, tuple(rows), right=tuple(range(1, len(heads) - 1)), flow="cut")


def _verdict(comparisons: tuple[RankComparison, ...], tolerance: float) -> Facts:
    worst = max(comparisons, key=lambda c: abs(c.error))
    agrees = all(c.agrees(tolerance) for c in comparisons)
    what = f"{gib(worst.predicted_bytes)} GiB predicted, {gib(worst.observed_bytes)} observed, {share(worst.error)}"
    if len(comparisons) > 1:
        what = f"worst of {len(comparisons)} ranks: {what}"
    return Facts((Fact("agrees" if agrees else "differs", f"{what} (tolerance {tolerance:.1%})"),))


def share(difference: float) -> str:
    """``+0.42%``; a difference that two decimals do not show has no sign."""
    return unsigned_zero(f"{difference:+.2%}")


def unsigned_zero(figure: str) -> str:
    """The figure, without its sign where no digit is other than zero."""
    return figure if any(digit in figure for digit in "123456789") else figure[1:]


def _gib(count: int | None) -> str:
    return "-" if count is None else gib(count)


def _signed(difference: int) -> str:
    return unsigned_zero(("+" if difference >= 0 else "-") + gib(abs(difference)))


def _change(said: int | None, seen: int | None) -> str:
    return "" if said is None or not seen else share(said / seen - 1)
