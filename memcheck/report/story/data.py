"""The document of a report as JSON, for programs that draw it: ``schemas/story.schema.json``, version 1.

Fields may be added, never renamed or removed. A block names its kind under ``block``; bytes are whole numbers.
"""

from __future__ import annotations

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.finding import Edit
from memcheck.report.json import edit
from memcheck.report.story import Fitting, Gauge, PlanHead, PlanSummary, Prose
from memcheck.report.story.blocks import (
    Cards,
    Chart,
    Comparison,
    Excerpt,
    Excerpts,
    Facts,
    Formulas,
    Grid,
    Item,
    Ledger,
    Remedies,
    SourceLine,
    Story,
    Table,
)
from memcheck.report.story.build import story
from memcheck.result import Report

BLOCKS = {
    Cards: "cards",
    Chart: "chart",
    Comparison: "comparison",
    Excerpt: "excerpt",
    Excerpts: "excerpts",
    Facts: "facts",
    Fitting: "fitting",
    Formulas: "formulas",
    Gauge: "gauge",
    Grid: "grid",
    Item: "item",
    Ledger: "ledger",
    PlanHead: "plan-head",
    PlanSummary: "plan-summary",
    Prose: "prose",
    Remedies: "remedies",
    Table: "table",
}
"""The kind of every block."""
LONGEST_LINE = 2000
"""Characters of a source line; marks beyond them are left out with the rest of the line."""


def render(report: Report, screen: Screen | None = None, *, judged: bool = True) -> str:
    """The document; the screen plays no part. Not ``judged``: what ``estimate`` has to say."""
    return dumps(document(story(report, judged=judged)), indent=1) + "\n"


def document(told: Story) -> dict[str, object]:
    """A story as plain data."""
    found = {name: as_data(value) for name, value in told._asdict().items() if name != "version"}
    return {"story": 1, "memcheck": told.version, **found}


def as_data(value: object) -> object:
    """A record as a dict, a tuple as a list, and plain values as they are."""
    if isinstance(value, Edit):
        return edit(value)
    if isinstance(value, SourceLine):
        value = shortened(value)
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        if fields is None:
            return [as_data(each) for each in value]
        kind = BLOCKS.get(type(value))
        named = {"block": kind} if kind else {}
        return {**named, **{name: as_data(each) for name, each in zip(fields, value, strict=True)}}
    if isinstance(value, (list, dict)):
        return plain(value)
    return value


def plain(value: object) -> object:
    """A value of a plan as JSON can hold it."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def shortened(line: SourceLine) -> SourceLine:
    """A source line of at most :data:`LONGEST_LINE` characters."""
    if line.text is None or len(line.text) <= LONGEST_LINE:
        return line
    kept = tuple(mark for mark in line.marks if mark.column <= LONGEST_LINE)
    marks = tuple(mark._replace(end_column=min(mark.end_column, LONGEST_LINE + 1)) for mark in kept)
    return line._replace(text=line.text[:LONGEST_LINE], marks=marks)
