"""A defect of memcheck itself, met on one plan: said at the plan, and kept for the bug report."""

from __future__ import annotations

import traceback

from memcheck.finding import Finding, Location, Span
from memcheck.result import DEFECT, ERROR, PlanResult


def defect_result(path: str, document: int, name: str, error: Exception) -> PlanResult:
    """The result of a plan that memcheck could not judge through its own fault."""
    finding = Finding(
        DEFECT,
        "defect",
        "error",
        f"memcheck itself failed on this plan: {type(error).__name__}: {error}",
        Location(path, Span(1, 1, 1, 1)),
        help="the other plans were judged; please open an issue with the report whose place is printed below",
    )
    return PlanResult(path, document, name, ERROR, findings=(finding,))


def traceback_of(error: Exception) -> str:
    """The traceback as text."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
