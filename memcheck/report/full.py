"""The report for people at a terminal: one screen for each finding, then the verdict of every plan that has none."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, wrap
from memcheck.finding import Finding
from memcheck.report.block import block
from memcheck.report.summary import FIXABLE, closing_lines
from memcheck.result import DEFECT, PlanResult, Report


def render(report: Report, screen: Screen) -> str:
    """One section per plan, a blank line between sections; at the end where to read more, and the summary."""
    plans = [plan for plan in report.plans if plan.findings or not screen.quiet]
    sections = [section for plan in plans if (section := plan_section(plan, screen))]
    if not screen.quiet:
        more = further([finding for plan in plans for finding in plan.findings], screen)
        sections.append("\n".join([*more, *closing_lines(report, screen)]))
    return "\n\n".join(sections) + "\n" if sections else ""


def plan_section(plan: PlanResult, screen: Screen) -> str:
    """All findings of one plan; its verdict, where no finding about the memory of a GPU has shown that."""
    parts: list[list[str]] = []
    shown = False
    for finding in plan.findings:
        first = not shown and finding.about_memory and finding.code != HOST and plan.estimate is not None
        shown |= first
        parts.append(diagnostic(plan, finding, screen, first=first))
    if plan.estimate is not None and not shown:
        told = any(finding.code == HOST for finding in plan.findings)
        parts.append(block(plan, plan.estimate, screen, with_host=not told))
    return "\n\n".join("\n".join(lines) for lines in parts)


def alone(plan: PlanResult, screen: Screen) -> str:
    """The section of a plan that nothing else stands beside, and where to read more."""
    more = "\n".join(further(plan.findings, screen))
    return plan_section(plan, screen) + (f"\n\n{more}" if more else "")


MOST_LINES = 18
"""Lines of a finding that are aimed at: with what stands below the last plan, a plan that fails takes 22."""
HOST = "MEM106"
"""The one memory finding that is about the node and not about the GPU."""


def diagnostic(plan: PlanResult, finding: Finding, screen: Screen, *, first: bool) -> list[str]:
    """One finding: headline, source, memory, remedies, help. ``first``: none before it showed the memory of the GPU."""
    # Imported here because a run without findings needs none of it.
    head = headline(plan, finding, screen)
    if screen.verbose:
        from memcheck.report.verbose import everything

        return head + everything(plan, finding, screen, first=first)
    from memcheck.report.one_screen import one_screen

    return head + one_screen(plan, finding, screen, first=first, lines=MOST_LINES - len(head))


def headline(plan: PlanResult, finding: Finding, screen: Screen) -> list[str]:
    """``error[MEM101] exceeds-capacity: message``, wrapped with an indent; with a mark where ``--fix`` mends it."""
    label = f"{finding.severity}[{finding.code}]"
    mark = f" {FIXABLE}" if plan.fixable(finding) else ""
    lead = f"{label}{mark} {finding.name}:"
    message = wrap(clean(finding.message), screen.columns - 2, len(lead) - 1)
    shown = screen.paint(label, finding.severity)
    if screen.links:
        from memcheck.report.links import page

        shown = screen.link(shown, page(finding.code))
    first = f"{shown}{screen.paint(mark, 'good')} {screen.paint(finding.name + ':', 'strong')} "
    return [first + screen.paint(message[0], "strong"), *("  " + screen.paint(m, "strong") for m in message[1:])]


def further(findings: Iterable[Finding], screen: Screen) -> list[str]:
    """How to read about every rule that was met, and how to see all of what is known."""
    findings = [finding for finding in findings if finding.code != DEFECT]
    if not findings:
        return []
    from memcheck.report.details import labelled

    commands = f"memcheck explain {' '.join(sorted({finding.code for finding in findings}))}"
    if not screen.verbose and any(finding.about_memory for finding in findings):
        commands += "; -v shows the budget and what was assumed"
    return labelled("more", commands, screen, "dim")
