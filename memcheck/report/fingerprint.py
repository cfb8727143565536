"""What makes a finding the same finding in the next run: its rule, its plan and its key, never a line number."""

from __future__ import annotations

from collections.abc import Container, Iterator
from hashlib import sha256

from memcheck.finding import Finding, key_of
from memcheck.report.repository import repository_path
from memcheck.result import Hidden, PlanResult, Report

Identified = tuple[PlanResult, Finding, str]
"""A finding with its plan and its key."""
Keyed = tuple[PlanResult, Finding, str, Hidden | None]
"""A finding with its plan, its key and what hides it; None where it is shown."""


def identified(report: Report) -> Iterator[Identified]:
    """Every finding with a key of its own: findings of one rule at one key of a plan are counted."""
    for plan, finding, key, _ in keyed(report, ()):
        yield plan, finding, key


def keyed(report: Report, hidden_by: Container[str]) -> Iterator[Keyed]:
    """Every finding, shown or hidden by one of the given things, with its key; each plan's hidden ones come last."""
    seen: dict[tuple[str, ...], int] = {}
    for plan in report.plans:
        path = repository_path(plan.path)
        hidden = [(each.finding, each) for each in plan.hidden if each.by in hidden_by]
        for finding, why in [*((finding, None) for finding in plan.findings), *hidden]:
            parts = (finding.code, path, plan.name, key_of(finding.code, finding.pointer))
            seen[parts] = seen.get(parts, 0) + 1
            text = "\0".join((*parts, str(seen[parts])))
            yield plan, finding, sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32], why
