"""One finding for people: a headline, and below it one screen, or everything."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import beginning, clean, wrap
from memcheck.finding import Finding
from memcheck.report.closing import FIXABLE, LONG_NOTE, is_long
from memcheck.result import PlanResult

MOST_LINES = 18
"""Lines of a finding that are aimed at: with what stands below the last plan, a plan that fails takes 22."""


def diagnostic(plan: PlanResult, finding: Finding, screen: Screen, *, first: bool) -> list[str]:
    """One finding: headline, source, memory, remedies, help. ``first``: none before it showed the memory of the GPU."""
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
    text = clean(finding.message)
    if not screen.verbose and is_long(finding):
        text = f"{beginning(text, LONG_NOTE).rpartition(' ')[0]} ..."
    message = wrap(text, screen.columns - 2, len(lead) - 1)
    shown = screen.paint(label, finding.severity)
    if screen.links:
        from memcheck.report.links import page

        shown = screen.link(shown, page(finding.code))
    first = f"{shown}{screen.paint(mark, 'good')} {screen.paint(finding.name + ':', 'strong')} "
    return [first + screen.paint(message[0], "strong"), *("  " + screen.paint(m, "strong") for m in message[1:])]
