"""Apply dotted changes to a plan, whether its author used a short or a long form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memcheck.changes import with_changes
from memcheck.plan.read import read_plan
from memcheck.plan.types import Plan
from memcheck.source.types import Document


def apply(document: Document, changes: Mapping[str, object]) -> tuple[Document, Plan] | None:
    """The document with the values set, and its plan; None when the result is no valid plan."""
    changed = with_changes(document, changes)
    plan, _ = read_plan(changed)
    return None if plan is None else (changed, plan)


def written(document: Document, key: str) -> Any:
    """The value that the plan writes under a dotted key, in whatever form; None if it writes none."""
    value = document.values
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def setting(document: Document, key: str, field: str, value: object, whole: object = None) -> dict[str, object]:
    """A change of one field of a key that has a short form (``optimizer: adamw``, ``loss: standard``).

    Where the plan writes the long form only the field is set; otherwise ``whole`` (or the plain value) is
    written instead of it.
    """
    if isinstance(written(document, key), dict):
        return {f"{key}.{field}": value}
    return {key: value if whole is None else whole}
