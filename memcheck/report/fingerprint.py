"""What makes a finding the same finding in the next run: its rule, its plan and its key, never a line number."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from memcheck.baseline.file import key_of
from memcheck.finding import Finding
from memcheck.report.repository import repository_path
from memcheck.result import PlanResult, Report

Identified = tuple[PlanResult, Finding, str]
"""A finding with its plan and its key."""


def identified(report: Report) -> Iterator[Identified]:
    """Every finding with a key of its own: findings of one rule at one key of a plan are counted."""
    seen: dict[tuple[str, ...], int] = {}
    for plan in report.plans:
        path = repository_path(plan.path)
        for finding in plan.findings:
            parts = (finding.code, path, plan.name, key_of(finding.code, finding.pointer))
            seen[parts] = seen.get(parts, 0) + 1
            text = "\0".join((*parts, str(seen[parts])))
            yield plan, finding, sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
