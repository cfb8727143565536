"""The comparison for programs: ``schemas/compare.schema.json``, version 1. Fields may be added, never removed."""

from __future__ import annotations

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.what_if.compare.types import ComparedPoint, Comparison
from memcheck.what_if.points.data import record


def render(comparison: Comparison, screen: Screen | None = None) -> str:
    """The whole document; the screen plays no part."""
    return dumps(document(comparison), indent=1) + "\n"


def document(comparison: Comparison) -> dict[str, object]:
    """The comparison as plain data."""
    return {
        "compare": 1,
        "memcheck": comparison.version,
        "reference": comparison.reference or None,
        "rows": [_row(row) for row in comparison.rows],
    }


def _row(row: ComparedPoint) -> dict[str, object]:
    speed = row.relative_speed
    return {
        "plan": row.plan,
        "path": row.path,
        "document": row.document,
        "gpu": row.gpu,
        "as_written": row.as_written,
        **record(row.point),
        "relative_speed": None if speed is None else round(speed, 4),
        "price_per_gpu_hour": row.price_per_gpu_hour,
        "price_per_million_tokens": row.price_per_million_tokens,
    }
