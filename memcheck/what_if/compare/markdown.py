"""The comparison as a GitHub-flavoured table."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.memory.fit import FITS, UNCERTAIN
from memcheck.report.markdown import escape
from memcheck.what_if.compare.cells import RIGHT, cells, heads, legend, notes
from memcheck.what_if.compare.types import Comparison

ICONS = {FITS: "✅", UNCERTAIN: "⚠️"}


def render(comparison: Comparison, screen: Screen | None = None) -> str:
    """Head, rows, notes; the screen plays no part."""
    names = heads(comparison)
    rule = ["---", *("---:" if i in RIGHT else "---" for i in range(len(names)))]
    lines = [f"| {' | '.join(('plan', *names))} |", f"|{'|'.join(rule)}|"]
    for row in comparison.failing_first:
        gpu, verdict, *figures = cells(row, priced=comparison.priced)
        icon = ICONS.get(row.point.verdict, "❌")
        lines.append(
            f"| {escape(row.plan)} | {escape(gpu.replace(' *', ' (as written)'))} | {icon} {escape(verdict)} | "
            + " | ".join(figures)
            + " |"
        )
    lines += ["", f"<sub>{escape(legend(comparison, names))}</sub>"]
    told = notes(comparison.failing_first)
    lines += ["", *(f"- {escape(note)}" for note in told)] if told else []
    return "\n".join(lines) + "\n"
