"""One finding for people: a headline, and below it one screen, or everything."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import beginning, clean, wrap
from memcheck.finding import Finding
from memcheck.report.closing import FIXABLE, is_long
from memcheck.result import PlanResult

MOST_LINES = 18
"""Lines of a finding that are aimed at: with what stands below the last plan, a plan that fails takes 22. A note takes
one of them."""

MOST_OF_NOTE = 2000
"""Characters of a note that is cut to one line, with the reasons in it, which the line leaves out."""
_WHY = r" \([^()]*(?:\([^()]*\)[^()]*)*\)"


def diagnostic(plan: PlanResult, finding: Finding, screen: Screen, *, first: bool) -> list[str]:
    """One finding: headline, source, memory, remedies, help. ``first``: none before it showed the memory of the GPU."""
    head = headline(plan, finding, screen)
    if screen.verbose:
        from memcheck.report.verbose import everything

        return head + everything(plan, finding, screen, first=first)
    if is_long(finding):
        return head
    from memcheck.report.one_screen import one_screen

    notes = any(map(is_long, plan.findings[:MOST_LINES]))  # of more findings than lines, no screen shows all
    return head + one_screen(plan, finding, screen, first=first, lines=MOST_LINES - notes - len(head))


def headline(plan: PlanResult, finding: Finding, screen: Screen, message: str = "") -> list[str]:
    """``error[MEM101] exceeds-capacity: message``, wrapped with an indent; with a mark where ``--fix`` mends it.

    ``message``: what is said instead of the finding's own message.
    """
    label = f"{finding.severity}[{finding.code}]"
    mark = f" {FIXABLE}" if plan.fixable(finding) else ""
    lead = f"{label}{mark} {finding.name}:"
    text = clean(message or finding.message)
    if not screen.verbose and is_long(finding):
        import re

        text = re.sub(_WHY, "", text[:MOST_OF_NOTE])
        text = f"{beginning(text, screen.columns - len(lead) - 5).rpartition(' ')[0]} ..."
    told, *others = wrap(text, screen.columns - 2, len(lead) - 1)
    shown = screen.paint(label, finding.severity)
    if screen.links:
        from memcheck.report.links import page

        shown = screen.link(shown, page(finding.code))
    first = f"{shown}{screen.paint(mark, 'good')} {screen.paint(finding.name + ':', 'strong')} "
    return [first + screen.paint(told, "strong"), *("  " + screen.paint(other, "strong") for other in others)]
