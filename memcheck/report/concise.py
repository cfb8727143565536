"""One line per finding, ``path:line:col: CODE message``, for editors and grep."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, one_line
from memcheck.finding import Finding
from memcheck.report.summary import summary
from memcheck.result import Report


def render(report: Report, screen: Screen) -> str:
    """The findings in the order of the plans, then the summary."""
    lines = [line(finding, screen) for plan in report.plans for finding in plan.findings]
    if not screen.quiet:
        lines.append(summary(report))
    return "".join(f"{text}\n" for text in lines)


def line(finding: Finding, screen: Screen) -> str:
    """One finding on one line."""
    where = finding.location
    place = f"{one_line(where.path)}:{where.span.line}:{where.span.column}:"
    message = clean(" ".join(finding.message.split()))
    code = screen.paint(finding.code, finding.severity)
    if screen.links:
        from memcheck.report.links import page

        code = screen.link(code, page(finding.code))
    return f"{place} {code} {message}"
