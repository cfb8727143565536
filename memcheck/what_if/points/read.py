"""Typed plans of many variants of one document, section by section.

In a grid most sections of most points are alike: each variant of a section is checked against the schema once, in the
document that it belongs to, and the plan of a point is put together from its sections. The sections of a complete plan
are independent in the schema, so that a plan of valid sections is valid; a point with a section that is not valid alone
is read as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memcheck.finding import Finding
from memcheck.plan.changes import with_changes
from memcheck.plan.document import Document
from memcheck.plan.read import read_plan
from memcheck.plan.types import Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REMEMBERED = 65536
"""Variants of sections that are kept at most."""
Reading = tuple["Plan | None", "list[Finding]"]


class Variants:
    """Reads one document with different values in it. ``whole``: how a document is read."""

    def __init__(self, document: Document, whole: Callable[[Document], Reading] = read_plan) -> None:
        self.document, self._whole = document, whole
        plan, findings = whole(document)
        self._base = plan
        self._findings = findings
        self._sections: dict[str, object] = {}
        """By the keys and values as they are written, because 1 and true are one key of a dictionary."""

    def read(self, changes: Mapping[str, object]) -> Reading:
        """The plan with dotted keys set to other values, and what is wrong with it."""
        base = self._base
        if base is None:
            return self._whole(with_changes(self.document, changes))
        by_section: dict[str, list[tuple[str, object]]] = {}
        for item in changes.items():
            by_section.setdefault(item[0].partition(".")[0], []).append(item)
        parts: dict[str, Any] = {}
        for name, items in by_section.items():
            found = self._section(name, items)
            if found is None:
                return self._whole(with_changes(self.document, changes))
            parts[name] = found
        return base._replace(**parts), self._findings

    def _section(self, name: str, items: list[tuple[str, object]]) -> object:
        """The typed section with its values set; None if the document is not valid with them."""
        key = repr(items)
        if key in self._sections:
            return self._sections[key]
        plan, findings = self._whole(with_changes(self.document, dict(items)))
        found = getattr(plan, name, None) if plan is not None and len(findings) == len(self._findings) else None
        if len(self._sections) >= REMEMBERED:
            self._sections.clear()
        self._sections[key] = found
        return found
