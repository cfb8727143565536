"""The comparison for a terminal: one table, and what it leaves out below."""

from __future__ import annotations

from memcheck.compare.cells import HEADS, RIGHT, cells, notes
from memcheck.compare.types import Comparison
from memcheck.points.types import FITS, UNCERTAIN
from memcheck.report.screen import Screen
from memcheck.report.text import clean, width, wrap

GAP = "  "
STYLES = {FITS: "good", UNCERTAIN: "warning"}


def render(comparison: Comparison, screen: Screen) -> str:
    """The table, its legend, and its notes; plans under their names where there are several."""
    rows = comparison.rows
    several = comparison.plans > 1
    table = [cells(row) for row in rows]
    widths = [max(width(line[i]) for line in [HEADS, *table]) for i in range(len(HEADS))]
    indent = "  " if several else ""
    lines = [screen.paint((indent + _line(HEADS, widths)).rstrip(), "dim")]
    last: tuple[str, int] | None = None
    for row, line in zip(rows, table, strict=True):
        if several and last != (row.path, row.document):
            last = (row.path, row.document)
            head = row.plan if row.plan in row.path else f"{row.plan}  {row.path}"
            lines += [screen.paint(part, "strong") for part in wrap(clean(head), screen.columns)]
        lines.append(screen.paint((indent + _line(line, widths)).rstrip(), STYLES.get(row.point.verdict, "error")))
    lines += ["", *_legend(comparison, screen)]
    for note in notes(rows):
        lines += wrap(clean(note), screen.columns)
    return "\n".join(lines) + "\n"


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    parts = []
    for index, (cell, room) in enumerate(zip(row, widths, strict=True)):
        pad = " " * (room - width(cell))
        parts.append(pad + cell if index in RIGHT else cell + pad)
    return GAP.join(parts)


def _legend(comparison: Comparison, screen: Screen) -> list[str]:
    text = "batch: sequences per GPU and pass (per step). recompute: arithmetic that it adds."
    if any(row.as_written for row in comparison.rows):
        text = f"* as the plan has it. {text}"
    if comparison.reference:
        text += (
            f" speed: tokens per second and GPU, relative to {comparison.reference}; TFLOPS: of the model, per GPU;"
            " both from a roofline model that ranks, not a measurement."
        )
    return [screen.paint(line, "dim") for line in wrap(clean(text), screen.columns)]
