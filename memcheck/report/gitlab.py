"""GitLab Code Quality: what the merge request's widget and diff show.

https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
"""

from __future__ import annotations

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.edge.text import clean
from memcheck.finding import Finding
from memcheck.report.fingerprint import identified
from memcheck.report.neutral import neutral
from memcheck.report.repository import repository_path
from memcheck.result import Report

SEVERITIES = {"error": "critical", "warning": "minor", "info": "info"}
MEMORY_SEVERITIES = {"error": "blocker", "warning": "major", "info": "info"}


def render(report: Report, screen: Screen | None = None) -> str:
    """An array with one object per finding; the screen plays no part."""
    found = [issue(finding, identity) for _, finding, identity in identified(report)]
    return dumps(found, indent=1) + "\n"


def issue(finding: Finding, identity: str) -> dict[str, object]:
    """One finding. Issues of equal fingerprint would be shown as one, so every finding has its own."""
    span = finding.location.span
    return {
        "description": f"{finding.code} {neutral(clean(finding.message))}",
        "check_name": finding.name,
        "fingerprint": identity,
        "severity": severity(finding),
        "location": {
            "path": repository_path(finding.location.path).removeprefix("./"),
            "lines": {"begin": span.line, "end": span.end_line},
        },
    }


def severity(finding: Finding) -> str:
    """What is about the amount of memory weighs one step more than the rest of its kind."""
    return (MEMORY_SEVERITIES if finding.code.startswith("MEM1") else SEVERITIES)[finding.severity]
