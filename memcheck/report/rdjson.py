"""Reviewdog's diagnostic format, with suggestions that it can post for one-click use. It posts messages as Markdown.

https://github.com/reviewdog/reviewdog/tree/master/proto/rdf. Columns count bytes of UTF-8, and a suggestion is posted
only if it lies on the lines of its diagnostic.
"""

from __future__ import annotations

from itertools import pairwise

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.edge.text import clean
from memcheck.finding import OTHER_HARDWARE, Edit, Finding, Location, Span
from memcheck.report.links import published
from memcheck.report.neutral import neutral
from memcheck.report.story.remedies import advice_lines
from memcheck.result import DEFECT, PlanResult, Report

SEVERITIES = {"error": "ERROR", "warning": "WARNING", "info": "INFO"}


def render(report: Report, screen: Screen | None = None) -> str:
    """One result with all diagnostics; the screen plays no part."""
    diagnostics = [diagnostic(plan, finding) for plan in report.plans for finding in plan.findings]
    document = {"source": {"name": "memcheck"}, "diagnostics": diagnostics}
    return dumps(document, indent=1) + "\n"


def diagnostic(plan: PlanResult, finding: Finding) -> dict[str, object]:
    """One finding as a diagnostic of the Reviewdog Diagnostic Format."""
    url = published(finding.code) if finding.code != DEFECT else ""
    record: dict[str, object] = {
        "message": "\n".join([neutral(line) for line in (clean(finding.message), *advice_lines(plan, finding))]),
        "location": location(finding.location, plan),
        "severity": SEVERITIES[finding.severity],
        "code": {"value": finding.code, **({"url": url} if url else {})},
    }
    if finding.related:
        record["related_locations"] = [
            {"message": neutral(clean(label)), "location": location(where, plan)} for label, where in finding.related
        ]
    if found := suggestions(plan, finding):
        record["suggestions"] = found
    return record


def location(where: Location, plan: PlanResult) -> dict[str, object]:
    """A place; the path is as the command was given it."""
    return {"path": where.path, "range": span(where.span, where.path, plan)}


def span(where: Span, path: str, plan: PlanResult) -> dict[str, object]:
    """Start and end of a span, with columns in bytes of UTF-8. The end is exclusive."""
    return {
        "start": {"line": where.line, "column": byte_column(plan, path, where.line, where.column)},
        "end": {"line": where.end_line, "column": byte_column(plan, path, where.end_line, where.end_column)},
    }


def byte_column(plan: PlanResult, path: str, line: int, column: int) -> int:
    """A column counted in characters, as one counted in bytes of UTF-8."""
    lines = plan.sources.get(path, ())
    before = lines[line - 1][: column - 1] if line <= len(lines) else ""
    return column + len(before.encode("utf-8", "replace")) - len(before)


def suggestions(plan: PlanResult, finding: Finding) -> list[dict[str, object]]:
    """The fix and the remedies that edit nothing but the finding's own line, each as one replacement.

    None changes the hardware: a suggestion is accepted with one click.
    """
    where = finding.location
    choices = [finding.fix]
    for remedy in finding.remedies:
        files = remedy.files(plan.path)
        if [file.path for file in files] == [where.path] and remedy.group != OTHER_HARDWARE:
            choices.append(files[0].edits)
    found: list[dict[str, object]] = []
    for edits in choices:
        whole = merged(edits, where.span.line, plan.sources.get(where.path, ()))
        if whole is not None:
            found.append({"range": span(whole.span, where.path, plan), "text": whole.text})
    return found


def merged(edits: tuple[Edit, ...], line: int, lines: tuple[str, ...]) -> Edit | None:
    """Several edits of one line as one that spans them; None if they are elsewhere too."""
    if not edits or line > len(lines) or any((e.span.line, e.span.end_line) != (line, line) for e in edits):
        return None
    ordered = sorted(edits)
    text = ordered[0].text
    for before, after in pairwise(ordered):
        text += lines[line - 1][before.span.end_column - 1 : after.span.column - 1] + after.text
    return Edit(Span(line, ordered[0].span.column, line, ordered[-1].span.end_column), text)
