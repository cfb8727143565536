"""A finding on one screen: the source, a bar of the memory, the first remedies, one line of help."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import clean, gib, percent, wrap
from memcheck.finding import Finding, Remedy
from memcheck.report.block import bar, with_numbers
from memcheck.report.details import NUMBER, change, labelled
from memcheck.report.effect import HIGH, measures, mends, on_the_host, taken, time
from memcheck.report.full import HOST
from memcheck.report.gauge import Gauge
from memcheck.report.snippet import snippet
from memcheck.report.verdict import short_of_host
from memcheck.result import PlanResult

MOST_REMEDIES = 3
NAMES = {HIGH: "interval up to"}
"""Names for measures whose own name a reader understands only next to the bar."""


def one_screen(plan: PlanResult, finding: Finding, screen: Screen, *, first: bool, lines: int) -> list[str]:
    """The text below a headline, in about ``lines`` lines: remedies after the first are dropped to save room.

    ``first``: no finding before it showed the bar of the GPU.
    """
    estimate = plan.estimate
    found = snippet(finding, plan.sources, screen, compact=finding.about_memory)
    if estimate is not None and first:
        found += bar(plan, estimate, screen)
    elif estimate is not None and finding.code == HOST:
        found += host_bar(plan, screen)
    offered, help = finding.remedies, finding.help
    if offered and estimate is not None:
        found += remedies(plan, offered, screen, lines - len(found) - 1)
        help = _help(plan, finding)
    return found + (labelled("help", help, screen, "info") if help else [])


def host_bar(plan: PlanResult, screen: Screen) -> list[str]:
    """The bar of a node's memory at the moment that the finding is about; nothing where no moment needs too much."""
    moments, capacity = short_of_host(plan), plan.host_capacity_bytes
    if not moments or not capacity:
        return []
    need = moments[0].bytes
    numbers = f"{gib(need).rjust(6)} of {gib(capacity)} GiB of a node's memory"
    gauge = Gauge(need=need, seen=need, capacity=capacity, limit=capacity, style="bad-bar")
    return with_numbers(gauge, percent(need / capacity), numbers, screen)


def _help(plan: PlanResult, finding: Finding) -> str:
    """What writes a remedy into the file, and where there are more of them."""
    search = "`memcheck suggest` finds more"
    chosen = plan.written_by_unsafe_fixes(finding)
    if chosen is None:
        return search
    return f"`--fix --unsafe-fixes` writes remedy {finding.remedies.index(chosen) + 1}; {search}"


def remedies(plan: PlanResult, options: tuple[Remedy, ...], screen: Screen, lines: int) -> list[str]:
    """Numbered remedies that fit into ``lines`` lines: memory and time after the change, then the change itself."""
    figures = [(*(each.after for each in measures(plan, remedy)), time(remedy.slowdown)) for remedy in options]
    heads = [each.name for each in measures(plan, options[0])]
    columns = [max(len(row[i]) for row in figures) for i in range(len(heads) + 1)]
    start = NUMBER + sum(columns) + 2 * len(columns)
    rows = []
    for number, (remedy, row) in enumerate(zip(options[:MOST_REMEDIES], figures, strict=False), 1):
        style = "good" if mends(plan, remedy) else "warning"
        *told, price = (text.rjust(cells) for text, cells in zip(row, columns, strict=True))
        shown = "  ".join([*(screen.paint(text, style) for text in told), price])
        first, *others = wrap(_change(plan, remedy), screen.columns - start)
        lead = f"{number}. ".rjust(NUMBER)
        rows.append([f"{lead}{shown}  {first}", *(" " * start + line for line in others)])
    while len(rows) > 1 and 1 + sum(map(len, rows)) > lines:
        del rows[-1]
    left = len(options) - len(rows)
    title = "remedies, each re-computed"
    names = ", ".join(NAMES.get(head, head) for head in heads)
    named = f"{title}: {names}, time, change{f'; {left} more with -v' if left else ''}"
    first, *others = wrap(named, screen.columns)
    head = [screen.paint(title, "strong") + screen.paint(first[len(title) :], "dim")]
    head += [screen.paint(line, "dim") for line in others]
    return [*head, *(line for row in rows for line in row)]


def _change(plan: PlanResult, remedy: Remedy) -> str:
    """The keys that a remedy changes, then its costs in addition to time."""
    paid = [each for each in (*taken(remedy), on_the_host(plan, remedy)) if each]
    return clean(", ".join(change(plan, remedy)) + (f" ({'; '.join(paid)})" if paid else ""))
