"""What to do about a finding, in lines of plain text, for places that show no tables."""

from __future__ import annotations

from memcheck.edge.text import clean
from memcheck.finding import Finding, Remedy
from memcheck.report.details import change
from memcheck.report.effect import ASKS, cost, effect, on_the_host
from memcheck.result import PlanResult


def advice(plan: PlanResult, finding: Finding) -> list[str]:
    """A line per remedy, then the help."""
    lines = [f"remedy ({ASKS[remedy.group]}): {remedy_line(plan, remedy)}" for remedy in finding.remedies]
    return [*lines, f"help: {clean(finding.help)}"] if finding.help else lines


def remedy_line(plan: PlanResult, remedy: Remedy) -> str:
    """The keys that it changes, what that does to the memory, and what it costs."""
    price = "; ".join(filter(None, (f"time {cost(remedy)}", on_the_host(plan, remedy))))
    return f"{'; '.join(change(plan, remedy))}   {effect(plan, remedy)}; {price}"
