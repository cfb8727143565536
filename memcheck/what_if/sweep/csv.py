"""The sweep for spreadsheets and data frames: one line per point, the swept keys first."""

from __future__ import annotations

import csv
import io

from memcheck.edge.screen import Screen
from memcheck.edge.text import value
from memcheck.report.csv import cell
from memcheck.what_if.points.data import COLUMNS, cells
from memcheck.what_if.sweep.types import Sweep


def render(sweep: Sweep, screen: Screen | None = None) -> str:
    """A line of names, then the points in the grid's order; the screen plays no part."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = [each.key for each in sweep.axes]
    writer.writerow([*map(cell, keys), *COLUMNS])
    for point in sweep.points:
        values = [_plain(point.set[key]) for key in keys]
        writer.writerow([cell(each) for each in [*values, *cells(point)]])
    return out.getvalue()


def _plain(item: object) -> object:
    """Numbers stay numbers; everything else is written as YAML would."""
    return item if isinstance(item, (int, float)) and not isinstance(item, bool) else value(item)
