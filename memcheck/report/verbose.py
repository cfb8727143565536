"""All that is known about a finding: source, memory budget, largest tensors, assumptions, every remedy."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.finding import Finding
from memcheck.report import details
from memcheck.report.budget import budget, host_budget
from memcheck.report.full import HOST
from memcheck.report.snippet import snippet
from memcheck.result import PlanResult


def everything(plan: PlanResult, finding: Finding, screen: Screen, *, first: bool) -> list[str]:
    """What stands below a headline. ``first``: no finding before it showed the budget of the GPU."""
    lines = snippet(finding, plan.sources, screen)
    groups: list[list[str]] = []
    estimate = plan.estimate
    if first and estimate is not None:
        peak, interval = details.peak(estimate), details.interval(estimate)
        groups.append(budget(plan, estimate, screen))
        groups.append([*details.labelled("peak", peak, screen), *details.labelled("interval", interval, screen)])
        groups.append(details.largest(estimate.largest, screen))
        groups.append(details.assumptions(plan, screen))
    elif finding.code == HOST:
        groups += [host_budget(plan, screen), details.assumptions(plan, screen)]
    groups.append(details.remedies(plan, finding.remedies, screen))
    groups.append(details.labelled("help", finding.help, screen, "info") if finding.help else [])
    for group in groups:
        lines += ["", *group] if group else []
    return lines
