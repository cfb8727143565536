"""One line per finding, ``path:line:col: CODE message``, for editors and grep; ``[*]`` where ``--fix`` mends it."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, one_line
from memcheck.finding import Finding
from memcheck.report.story.summary import summary
from memcheck.result import PlanResult, Report


def render(report: Report, screen: Screen) -> str:
    """The findings in the order of the plans, then the summary."""
    lines = [line(plan, finding, screen) for plan in report.plans for finding in plan.findings]
    if not screen.quiet:
        lines.append(summary(report))
        if any(plan.findings for plan in report.plans):
            from memcheck.report.story.findings import fixes

            lines += filter(None, (fixes(report),))
    return "".join(f"{each}\n" for each in lines)


def line(plan: PlanResult, finding: Finding, screen: Screen) -> str:
    """One finding on one line; ``[*]`` where ``--fix`` mends it."""
    where = finding.location
    place = f"{one_line(where.path)}:{where.span.line}:{where.span.column}:"
    message = clean(" ".join(finding.message.split()))
    code = screen.paint(finding.code, finding.severity)
    if screen.links:
        from memcheck.report.links import page

        code = screen.link(code, page(finding.code))
    mark = "[*] " if plan.fixable(finding) else ""
    return f"{place} {code} {mark}{message}"
