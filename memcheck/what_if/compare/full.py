"""The comparison for a terminal: one table, and what it leaves out below."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, width, wrap
from memcheck.memory.fit import FITS, UNCERTAIN
from memcheck.report.columns import GAP, fitting, left_out
from memcheck.what_if.compare.cells import EXPENDABLE, RIGHT, cells, heads, legend, notes
from memcheck.what_if.compare.types import Comparison

STYLES = {FITS: "good", UNCERTAIN: "warning"}


def render(comparison: Comparison, screen: Screen) -> str:
    """The table, its legend, and its notes; plans under their names where there are several."""
    rows = comparison.failing_first
    several = comparison.plans > 1
    names = heads(comparison)
    table = [cells(row, priced=comparison.priced) for row in rows]
    widths = [max(width(line[i]) for line in [names, *table]) for i in range(len(names))]
    indent = "  " if several else ""
    kept = fitting(widths, EXPENDABLE, screen.columns - len(indent))
    lines = [screen.paint((indent + _line(names, widths, kept)).rstrip(), "dim")]
    last: tuple[str, int] | None = None
    for row, line in zip(rows, table, strict=True):
        if several and last != (row.path, row.document):
            last = (row.path, row.document)
            head = row.plan if row.plan in row.path else f"{row.plan}  {row.path}"
            lines += [screen.paint(part, "strong") for part in wrap(clean(head), screen.columns)]
        text = (indent + _line(line, widths, kept)).rstrip()
        lines.append(screen.paint(text, STYLES.get(row.point.verdict, "error")))
    lines += ["", *_legend(comparison, screen, kept)]
    for note in notes(rows):
        lines += wrap(clean(note), screen.columns)
    return "\n".join(lines) + "\n"


def _line(row: tuple[str, ...], widths: list[int], kept: list[int]) -> str:
    parts = []
    for index in kept:
        pad = " " * (widths[index] - width(row[index]))
        parts.append(pad + row[index] if index in RIGHT else row[index] + pad)
    return GAP.join(parts)


def _legend(comparison: Comparison, screen: Screen, kept: list[int]) -> list[str]:
    names = heads(comparison)
    told = [legend(comparison, [names[index] for index in kept])]
    told = ["* as the plan has it.", *told] if any(row.as_written for row in comparison.rows) else told
    told.append(left_out(names, kept))
    text = " ".join(filter(None, told))
    return [screen.paint(line, "dim") for line in wrap(clean(text), screen.columns)]
