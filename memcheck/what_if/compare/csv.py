"""The comparison for spreadsheets: one line per plan and GPU."""

from __future__ import annotations

import csv
import io

from memcheck.edge.screen import Screen
from memcheck.report.csv import cell
from memcheck.what_if.compare.types import Comparison
from memcheck.what_if.points.data import COLUMNS
from memcheck.what_if.points.data import cells as figures

PRICES = ("price_per_gpu_hour", "price_per_million_tokens")
HEADS = ("plan", "path", "document", "gpu", "as_written", *COLUMNS, "relative_speed", *PRICES)


def render(comparison: Comparison, screen: Screen | None = None) -> str:
    """A line of names, then the rows; the screen plays no part."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(HEADS)
    for row in comparison.rows:
        speed = "" if row.relative_speed is None else round(row.relative_speed, 4)
        prices = (row.price_per_gpu_hour, row.price_per_million_tokens)
        line = [row.plan, row.path, row.document, row.gpu, row.as_written, *figures(row.point), speed, *prices]
        writer.writerow([cell(value) for value in line])
    return out.getvalue()
