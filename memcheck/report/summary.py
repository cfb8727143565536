"""The last line of a report."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.edge.text import plural
from memcheck.memory.fit import DOES_NOT_FIT, FITS, UNCERTAIN
from memcheck.result import BASELINE, COMMENT, SELECTION, Report

HIDDEN = {COMMENT: "comments", BASELINE: "the baseline", SELECTION: "the choice of rules"}


def summary(report: Report) -> str:
    """``checked 12 plans: 7 passed, 5 failed (6 errors, 2 warnings), hidden: 1 by comments``.

    Where a plan is uncertain, the verdicts come first: ``checked 3 plans: 1 fits, 1 uncertain, 1 does not fit; ...``.
    """
    accepted = f", {report.accepted} accepted" if report.accepted else ""
    passed = f"{report.passed - report.accepted} passed{accepted}"
    text = f"checked {plural(len(report.plans), 'plan')}: {by_verdict(report)}{passed}, {report.failed} failed"
    nouns = {"error": "error", "warning": "warning", "info": "note"}
    counts = [plural(count, noun) for severity, noun in nouns.items() if (count := report.count(severity))]
    if counts:
        text += f" ({', '.join(counts)})"
    hidden = [f"{count} by {words}" for by, words in HIDDEN.items() if (count := report.hidden(by))]
    if hidden:
        text += f", hidden: {', '.join(hidden)}"
    if report.unchanged:
        text += f", {plural(report.unchanged, 'file')} unchanged"
    if report.elsewhere:
        text += f", {plural(report.elsewhere, 'file')} in other shards"
    if report.unreadable:
        text += f", {plural(len(report.unreadable), 'path')} not readable"
    return text


def by_verdict(report: Report) -> str:
    """``1 fits, 2 uncertain, 3 do not fit; ``, or nothing where no plan is uncertain: the statuses then say it all."""
    found = report.verdicts
    if not found[UNCERTAIN]:
        return ""
    singular, several = WORDS_OF
    parts = [f"{count:,} {(singular if count == 1 else several)[each]}" for each, count in found.items() if count]
    left = len(report.plans) - sum(found.values())
    return f"{', '.join([*parts, *([f'{left:,} not estimated'] if left else [])])}; "


WORDS_OF = (
    {FITS: "fits", UNCERTAIN: "uncertain", DOES_NOT_FIT: "does not fit"},
    {FITS: "fit", UNCERTAIN: "uncertain", DOES_NOT_FIT: "do not fit"},
)
"""The verdicts after one plan, and after several."""


def summary_line(report: Report, screen: Screen) -> str:
    """The summary, coloured by its verdict."""
    bad = report.failed or report.unreadable
    return screen.paint(summary(report), "error" if bad else "warning" if report.count("warning") else "good")
