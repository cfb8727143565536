"""Where a value came into the plan that was written elsewhere: a finding at an anchor or in a base names its use."""

from __future__ import annotations

from memcheck.finding import Finding, Location
from memcheck.plan.document import Document

HERE = "used here"
EXTENDED = "extended here"
TAKEN = "taken from"
"""A value of the framework config that is the plan's source."""


def traced(findings: list[Finding], document: Document) -> list[Finding]:
    """The findings, each with the alias, merge key or ``extends`` through which its key was brought in."""
    return [_traced(finding, document) for finding in findings]


def _traced(finding: Finding, document: Document) -> Finding:
    use = _use(finding, document)
    if use is None or any(where.span == use.span and where.path == use.path for _, where in finding.related):
        return finding
    taken = finding.location.note.startswith(TAKEN)
    label = TAKEN if taken else EXTENDED if use.path != finding.location.path else HERE
    return finding._replace(related=(*finding.related, (label, use)))


def _use(finding: Finding, document: Document) -> Location | None:
    """The use of the key that a finding points at; None if the key stands in the plan itself, or is not in it."""
    pointer = finding.pointer
    while pointer and pointer not in document.marks:
        pointer = pointer.rpartition("/")[0]
    mark = document.marks.get(pointer) if pointer else None
    if mark is None or mark.used_at is None or mark.used_at.span.is_empty:
        return None
    own = {mark.value.path} | ({mark.key.path} if mark.key is not None else set())
    return mark.used_at if finding.location.path in own else None
