"""A plan or config without an estimate: what is wrong with it, in as few lines as that takes."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import one_line, plural
from memcheck.finding import Finding, Location
from memcheck.report.closing import is_long
from memcheck.report.details import labelled
from memcheck.report.diagnostic import headline
from memcheck.report.snippet import is_whole_file, snippet
from memcheck.result import PlanResult

AIRY, MOST_LINES = 9, 21
"""Lines that snippets with space around them may take, and lines of all that is shown of one plan."""
LEAST_SHARED = 30
"""Characters at the start of two messages that stand once, if both have them."""
INDENT = 6
Group = list[Finding]


def refused(plan: PlanResult, screen: Screen) -> list[str]:
    """Every finding with its source lines; without them, one below the other, where they would fill more than a screen.

    Findings at one place with one help share both.
    """
    groups = _groups(plan)
    for tight in (False, True):
        parts = [_whole(plan, group, screen, tight=tight) for group in groups]
        lines = "\n\n".join("\n".join(part) for part in parts).split("\n") if parts else []
        if len(lines) <= AIRY:
            return lines
    errors = [group for group in groups if not is_long(group[0])]
    if len(errors) < 2:
        return lines
    return _listed(plan, groups, screen)


def _groups(plan: PlanResult) -> list[Group]:
    """Findings with the same place and the same help together, where the first of them stands."""
    found: dict[object, Group] = {}
    for finding in plan.findings:
        places = tuple((label, where) for label, where in finding.related)
        shared = (finding.code, finding.severity, finding.help, finding.location, places)
        found.setdefault(shared if finding.help else id(finding), []).append(finding)
    return list(found.values())


def _heads(plan: PlanResult, group: Group, screen: Screen) -> list[str]:
    """The headline of each; what all messages start with stands in the first one alone."""
    lines = headline(plan, group[0], screen)
    shared = _shared_start([finding.message for finding in group])
    for finding in group[1:]:
        left = f"... {finding.message[shared:]}" if shared >= LEAST_SHARED else ""
        lines += headline(plan, finding, screen, left)
    return lines


def _shared_start(messages: list[str]) -> int:
    """How many characters of whole words all messages start with."""
    shortest, longest = min(messages), max(messages)  # in the order of letters: what these two share, all share
    same = next((at for at, pair in enumerate(zip(shortest, longest, strict=False)) if pair[0] != pair[1]), 0)
    return shortest.rfind(" ", 0, same) + 1


def _whole(plan: PlanResult, group: Group, screen: Screen, *, tight: bool) -> list[str]:
    """One group with its source lines and its help."""
    lines = _heads(plan, group, screen)
    finding = group[0]
    if is_long(finding):
        return lines
    lines += snippet(finding, plan.sources, screen, tight=tight)
    return lines + (labelled("help", finding.help, screen, "info") if finding.help else [])


def _listed(plan: PlanResult, groups: list[Group], screen: Screen) -> list[str]:
    """The groups without source lines, as many as one screen holds, and how many findings it does not hold."""
    parts = []
    for group in groups:
        lines = _heads(plan, group, screen)
        finding = group[0]
        if not is_long(finding):
            where = _place(finding)
            place = f"{one_line(where.path)}:{where.span.line}:{where.span.column}"
            lines.append(f"  {screen.paint('-->', 'gutter')} {place}")
            lines += labelled("help", finding.help, screen, "info", INDENT) if finding.help else []
        parts.append(lines)
    shown = len(parts)
    if sum(map(len, parts)) > MOST_LINES:
        while shown > 1 and sum(map(len, parts[:shown])) >= MOST_LINES:
            shown -= 1
    left = sum(map(len, groups[shown:]))
    lines = [line for part in parts[:shown] for line in part]
    return [*lines, screen.paint(f"and {plural(left, 'more finding')}: -v shows all", "strong")] if left else lines


def _place(finding: Finding) -> Location:
    """Where to look: the first other place, where the finding is about a file as a whole."""
    if is_whole_file(finding.location) and finding.related:
        return finding.related[0][1]
    return finding.location
