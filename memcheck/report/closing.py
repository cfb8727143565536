"""What stands below the findings of a run: where to read more about them, and how many can be fixed."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.edge.screen import Screen
from memcheck.edge.text import plural, wrap
from memcheck.finding import Finding
from memcheck.report.details import labelled
from memcheck.result import DEFECT, Report

FIXABLE = "[*]"
"""The mark of a finding that ``--fix`` can repair."""


def fixes(report: Report, columns: int | None = None) -> list[str]:
    """``[*] 4 of 6 findings can be fixed with --fix, 1 more with --fix --unsafe-fixes``; no line where none can.

    ``columns``: the width that it is broken to.
    """
    shown = sum(len(plan.findings) for plan in report.plans)
    safe = sum(plan.fixable(finding) for plan in report.plans for finding in plan.findings)
    unsafe = sum(
        plan.written_by_unsafe_fixes(finding) is not None for plan in report.plans for finding in plan.findings
    )
    if not safe and not unsafe:
        return []
    if safe:
        more = f", {unsafe} more with --fix --unsafe-fixes" if unsafe else ""
        text = f"{FIXABLE} {safe} of {plural(shown, 'finding')} can be fixed with --fix{more}"
    else:
        text = f"{unsafe} of {plural(shown, 'finding')} can be fixed with --fix --unsafe-fixes"
    return [text] if columns is None else wrap(text, columns)


LONG_NOTE = 160
"""Characters of a note that stands on one screen as it is; of a longer one, which lists what was assumed, one line."""


def is_long(finding: Finding) -> bool:
    """Whether only the long form shows all of a note."""
    return finding.severity == "info" and len(finding.message) > LONG_NOTE


def further(findings: Iterable[Finding], screen: Screen) -> list[str]:
    """How to read about every rule that was met, and how to see all of what is known."""
    findings = [finding for finding in findings if finding.code != DEFECT]
    if not findings:
        return []
    commands = f"memcheck explain {' '.join(sorted({finding.code for finding in findings}))}"
    if not screen.verbose and any(finding.about_memory or is_long(finding) for finding in findings):
        commands += "; -v shows everything"
    return labelled("more", commands, screen, "dim")
