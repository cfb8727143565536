"""The comparison for programs."""

from __future__ import annotations

from typing import Any

from memcheck import __version__
from memcheck.accounts.estimate import Instant
from memcheck.edge.json_text import dumps
from memcheck.report.json import tensors
from memcheck.verify.compare import ComponentDifference, RankComparison, sentence
from memcheck.verify.replay.plan import Replayed, replayed
from memcheck.verify.request import Request
from memcheck.verify.types import Observation, RankObservation


def render(
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
            {**_rank(c, observation, tolerance), "replayed": _replayed(replayed(request, c.observed))}
            for c in comparisons
        ],
    }
    return dumps(found, indent=1) + "\n"


def _rank(comparison: RankComparison, observation: Observation, tolerance: float) -> dict[str, Any]:
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


def _replayed(found: Replayed | None) -> dict[str, Any] | None:
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
