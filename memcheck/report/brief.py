"""Short reports: a few lines per plan for hooks, and one line per finding for editors and grep."""

from __future__ import annotations

import shlex

from memcheck.edge.screen import Screen, clean, one_line, plural, wrap
from memcheck.plan.finding import Finding
from memcheck.report import text
from memcheck.report.forge import page
from memcheck.report.full import closing_lines
from memcheck.report.story.findings import fixes
from memcheck.report.story.remedies import new_values
from memcheck.report.story.summary import head, plan_summary, summary
from memcheck.rules.result import PlanResult, Report

MOST_LINES = 10
"""Lines of one plan, the pointer to the rest among them."""


def render(report: Report, screen: Screen) -> str:
    """Plans with findings, each in at most ten lines, and the summary; plans without any in the summary alone."""
    sections = [
        "\n".join(plan_lines(plan, screen, report.stated)) for plan in report.plans if plan.findings or plan.accepted
    ]
    if not screen.quiet:
        sections.append("\n".join(closing_lines(report, screen)))
    return "\n\n".join(sections) + "\n" if sections else ""


def plan_lines(plan: PlanResult, screen: Screen, stated: tuple[str, ...] = ()) -> list[str]:
    """The summary of a plan, its findings on a line each as far as there is room, and the pointer to all of it.

    ``stated``: the options of the command line that say what the job is, for the command of the pointer.
    """
    first = head(plan) if plan.estimate is None else plan_summary(plan, plan.estimate)
    start = text.block(first, screen)
    if not plan.findings:
        return start
    start = start[: MOST_LINES - 4]
    told: list[str] = []
    room, left = MOST_LINES - len(start) - 2, len(plan.findings)
    for finding in plan.findings:
        lines = _told(plan, finding, screen)
        if len(told) + len(lines) > room:
            break
        told += lines
        left -= 1
    if left:
        told.append(f"and {plural(left, 'more finding')}")
    again = one_line(shlex.join(stated if "--" in stated else (*stated, plan.path)))
    pointer = screen.paint("all of it:", "dim") + f" memcheck check {again}"
    return [*start, *told, pointer]


def _told(plan: PlanResult, finding: Finding, screen: Screen) -> list[str]:
    """A finding on one line, cut where it is longer, and the change that ends it on another."""
    where = finding.location
    place = f"{where.span.line}" if where.path == plan.path else f"{one_line(where.path)}:{where.span.line}"
    label = f"{finding.severity}[{finding.code}]"
    message = clean(" ".join(f"line {place}: {finding.message}".split()))
    lines = [f"{screen.paint(label, finding.severity)} {_cut(message, screen.columns - len(label) - 1)}"]
    way = " ".join(finding.help.split())
    if finding.remedies:
        first = finding.remedies[0]
        way = f"{', '.join(new_values(first))} ({first.title})"
    if way:
        lines.append(f"      help: {_cut(clean(way), screen.columns - 12)}")
    return lines


def _cut(told: str, columns: int) -> str:
    """The first line of a text, with dots where there is more."""
    parts = wrap(told, max(columns - 4, 8))
    return parts[0] if len(parts) == 1 else f"{parts[0]} ..."


def concise(report: Report, screen: Screen) -> str:
    """The findings in the order of the plans, then the summary."""
    lines = [line(plan, finding, screen) for plan in report.plans for finding in plan.findings]
    if not screen.quiet:
        lines.append(summary(report))
        if any(plan.findings for plan in report.plans):
            lines += filter(None, (fixes(report),))
    return "".join(f"{each}\n" for each in lines)


def line(plan: PlanResult, finding: Finding, screen: Screen) -> str:
    """One finding on one line; ``[*]`` where ``--fix`` mends it."""
    where = finding.location
    place = f"{one_line(where.path)}:{where.span.line}:{where.span.column}:"
    message = clean(" ".join(finding.message.split()))
    code = screen.paint(finding.code, finding.severity)
    if screen.links:
        code = screen.link(code, page(finding.code))
    mark = "[*] " if plan.fixable(finding) else ""
    return f"{place} {code} {mark}{message}"
