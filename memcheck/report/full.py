"""The report for people at a terminal: one screen for each finding, then the verdict of every plan that has none."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.report import text
from memcheck.report.story import Prose
from memcheck.report.story.summary import plan_summary, summary, summary_tone
from memcheck.rules.result import PlanResult, Report


def render(report: Report, screen: Screen) -> str:
    """One section per plan, a blank line between sections; at the end where to read more, and the summary."""
    plans = [plan for plan in report.plans if plan.findings or not screen.quiet]
    sections = [section for plan in plans if (section := plan_section(plan, screen))]
    if not screen.quiet:
        sections.append("\n".join([*_more(plans, screen), *closing_lines(report, screen)]))
    return "\n\n".join(sections) + "\n" if sections else ""


def plan_section(plan: PlanResult, screen: Screen) -> str:
    """All findings of one plan; its verdict, where no finding about the memory of a GPU has shown that."""
    if not plan.findings and plan.estimate is not None:
        return "\n".join(text.block(plan_summary(plan, plan.estimate), screen))
    # Imported here because a run without findings needs none of it.
    from memcheck.report.screens import findings_of

    return findings_of(plan, screen)


def alone(plan: PlanResult, screen: Screen) -> str:
    """The report on a single plan, and where to read more."""
    more = "\n".join(_more([plan], screen))
    return plan_section(plan, screen) + (f"\n\n{more}" if more else "")


def closing_lines(report: Report, screen: Screen) -> list[str]:
    """The summary, and below it what can be fixed."""
    lines = [text.painted(screen, summary(report), summary_tone(report))]
    if any(plan.findings for plan in report.plans):
        from memcheck.report.story.findings import fixes

        told = fixes(report)
        lines += text.block(Prose(told), screen) if told else []
    return lines


def _more(plans: list[PlanResult], screen: Screen) -> list[str]:
    findings = [finding for plan in plans for finding in plan.findings]
    if not findings:
        return []
    from memcheck.report.screens import further

    return text.block(further(findings, verbose=screen.verbose), screen)
