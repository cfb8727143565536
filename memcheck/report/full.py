"""The report for people at a terminal: one screen for each finding, then the verdict of every plan that has none."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.report.block import block
from memcheck.report.summary import summary_line
from memcheck.result import PlanResult, Report

HOST = "MEM106"
"""The one memory finding that is about the node and not about the GPU."""


def render(report: Report, screen: Screen) -> str:
    """One section per plan, a blank line between sections; at the end where to read more, and the summary."""
    plans = [plan for plan in report.plans if plan.findings or not screen.quiet]
    sections = [section for plan in plans if (section := plan_section(plan, screen))]
    if not screen.quiet:
        sections.append("\n".join([*_more(plans, screen), *closing_lines(report, screen)]))
    return "\n\n".join(sections) + "\n" if sections else ""


def plan_section(plan: PlanResult, screen: Screen) -> str:
    """All findings of one plan; its verdict, where no finding about the memory of a GPU has shown that."""
    if plan.estimate is None and not screen.verbose:
        from memcheck.report.refused import refused

        return "\n".join(refused(plan, screen))
    parts: list[list[str]] = []
    shown = False
    for finding in plan.findings:
        # Imported here because a run without findings needs none of it.
        from memcheck.report.diagnostic import diagnostic

        first = not shown and finding.about_memory and finding.code != HOST and plan.estimate is not None
        shown |= first
        parts.append(diagnostic(plan, finding, screen, first=first))
    if plan.estimate is not None and not shown:
        told = any(finding.code == HOST for finding in plan.findings)
        parts.append(block(plan, plan.estimate, screen, with_host=not told))
    return "\n\n".join("\n".join(lines) for lines in parts)


def alone(plan: PlanResult, screen: Screen) -> str:
    """The report on a single plan, and where to read more."""
    more = "\n".join(_more([plan], screen))
    return plan_section(plan, screen) + (f"\n\n{more}" if more else "")


def closing_lines(report: Report, screen: Screen) -> list[str]:
    """The summary, and below it what can be fixed."""
    lines = [summary_line(report, screen)]
    if any(plan.findings for plan in report.plans):
        from memcheck.report.closing import fixes

        lines += fixes(report, screen.columns)
    return lines


def _more(plans: list[PlanResult], screen: Screen) -> list[str]:
    findings = [finding for plan in plans for finding in plan.findings]
    if not findings:
        return []
    from memcheck.report.closing import further

    return further(findings, screen)
