"""The report for people at a terminal: diagnostics with source lines, then the verdict of every plan."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, wrap
from memcheck.finding import Finding
from memcheck.report.block import block
from memcheck.report.summary import summary_line
from memcheck.result import DEFECT, PlanResult, Report


def render(report: Report, screen: Screen) -> str:
    """One section per plan, a blank line between sections, one summary line at the end."""
    plans = [plan for plan in report.plans if plan.findings or not screen.quiet]
    sections = [section for plan in plans if (section := plan_section(plan, screen))]
    if not screen.quiet:
        sections.append(summary_line(report, screen))
    return "\n\n".join(sections) + "\n" if sections else ""


def plan_section(plan: PlanResult, screen: Screen) -> str:
    """All findings of one plan and its verdict; a memory's budget stands inside the first finding about it."""
    parts: list[list[str]] = []
    budget_shown = False
    for finding in plan.findings:
        with_budget = not budget_shown and finding.about_memory and finding.code != HOST and plan.estimate is not None
        budget_shown |= with_budget
        parts.append(diagnostic(plan, finding, screen, with_budget=with_budget))
    if plan.estimate is not None and not budget_shown:
        parts.append(block(plan, plan.estimate, screen))
    return "\n\n".join("\n".join(lines) for lines in parts)


HOST = "MEM106"
"""The one memory finding that is about the node and not about the GPU."""


def diagnostic(plan: PlanResult, finding: Finding, screen: Screen, *, with_budget: bool) -> list[str]:
    """One finding: headline, source, budget, remedies, help, where to read more."""
    # Imported here because a run without findings needs none of it.
    from memcheck.report import details
    from memcheck.report.budget import budget, host_budget
    from memcheck.report.snippet import snippet

    lines = headline(finding, screen)
    lines += snippet(finding, plan.sources, screen)
    groups: list[list[str]] = []
    estimate = plan.estimate
    if with_budget and estimate is not None:
        groups.append(budget(plan, estimate, screen))
        groups.append(
            [
                *details.labelled("peak", details.peak(estimate), screen),
                *details.labelled("interval", details.interval(estimate), screen),
            ]
        )
        groups.append(details.largest(estimate.largest, screen))
        groups.append(details.assumptions(plan, screen))
    elif finding.code == HOST:
        groups += [host_budget(plan, screen), details.assumptions(plan, screen)]
    groups.append(details.remedies(plan, finding.remedies, screen))
    closing = details.labelled("help", finding.help, screen, "info") if finding.help else []
    if finding.code != DEFECT:
        closing.append(screen.paint("more:", "dim") + f" memcheck explain {finding.code}")
    groups = [group for group in groups if group]
    for group in groups:
        lines += ["", *group]
    return [*lines, *([""] if groups else []), *closing]


def headline(finding: Finding, screen: Screen) -> list[str]:
    """``error[MEM101] exceeds-capacity: message``, wrapped with an indent."""
    label = f"{finding.severity}[{finding.code}]"
    lead = f"{label} {finding.name}:"
    message = wrap(clean(finding.message), screen.columns - 2, len(lead) - 1)
    shown = screen.paint(label, finding.severity)
    if screen.links:
        from memcheck.report.links import page

        shown = screen.link(shown, page(finding.code))
    first = f"{shown} {screen.paint(finding.name + ':', 'strong')} "
    return [first + screen.paint(message[0], "strong"), *("  " + screen.paint(m, "strong") for m in message[1:])]
