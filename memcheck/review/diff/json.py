"""The comparison for programs: ``schemas/diff.schema.json``, version 1. Fields may be added, never removed."""

from __future__ import annotations

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.review.diff.types import ACCEPTED, FAILS_NOW, PASSES_NOW, Change, PlanDiff, Side
from memcheck.review.diff.words import KINDS


def render(comparison: PlanDiff, screen: Screen | None = None) -> str:
    """The whole document; the screen plays no part."""
    return dumps(document(comparison), indent=1) + "\n"


def document(comparison: PlanDiff) -> dict[str, object]:
    """The comparison as plain data."""
    grown = [change.delta_bytes for change in comparison.changes if change.delta_bytes is not None]
    return {
        "diff": 1,
        "memcheck": comparison.version,
        "before": comparison.before,
        "after": comparison.after,
        "summary": {
            **{kind: comparison.kinds(kind) for kind in KINDS},
            "unchanged": comparison.unchanged,
            "minor": comparison.minor,
            "fails_now": comparison.verdicts(FAILS_NOW),
            "passes_now": comparison.verdicts(PASSES_NOW),
            "largest_increase_bytes": max([0, *grown]),
        },
        "changes": [record(change) for change in comparison.changes],
    }


def record(change: Change) -> dict[str, object]:
    """One changed plan as JSON."""
    delta = change.delta_points
    return {
        "kind": change.kind,
        "name": change.side.name,
        "verdict": change.verdict,
        "delta_bytes": change.delta_bytes,
        "delta_host_bytes": change.delta_host_bytes,
        "delta_points": None if delta is None else round(delta, 4),
        "components_delta_bytes": {name: new - old for name, old, new in change.components},
        "changed_keys": [{"key": key, "before": old, "after": new} for key, old, new in change.keys],
        "remedy": change.remedy or None,
        "before": None if change.before is None else side(change.before),
        "after": None if change.after is None else side(change.after),
    }


def side(plan: Side) -> dict[str, object]:
    """One plan, before or after."""
    estimated = plan.needed_bytes is not None
    return {
        "path": plan.path,
        "document": plan.document,
        "name": plan.name,
        "status": plan.status,
        "device_bytes": plan.device_bytes,
        "needed_bytes": plan.needed_bytes,
        "capacity_bytes": plan.capacity_bytes if estimated else None,
        "utilization": round(plan.utilization, 6) if estimated else None,
        "components_bytes": dict(plan.components_bytes),
        "host_bytes_per_node": plan.host_bytes if estimated else None,
        "host_capacity_bytes": plan.host_capacity_bytes,
        "errors": list(plan.codes),
        "accepted": plan.mark == ACCEPTED,
        "verdict": plan.verdict or None,
        "gpu_hours": None if plan.gpu_hours is None else round(plan.gpu_hours, 2),
    }
