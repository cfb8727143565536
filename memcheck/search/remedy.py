"""A priced change as a remedy: with the edits that write it into the file."""

from __future__ import annotations

from memcheck.changes import with_changes
from memcheck.finding import Remedy
from memcheck.remedies.edits import edits
from memcheck.remedies.types import UNCHANGED, Priced
from memcheck.source.types import Document


def remedy_of(priced: Priced, document: Document) -> Remedy:
    """The remedy; its edits are empty where one of them has no certain place."""
    return Remedy(
        title=priced.candidate.title,
        set=dict(priced.changes),
        device_bytes=priced.estimate.device_bytes,
        utilization=priced.estimate.utilization,
        slowdown=None if priced.slowdown is None else round(priced.slowdown, 3),
        safe=priced.candidate.cost == UNCHANGED,
        edits=edits(document, priced.changes, with_changes(document, priced.changes).values),
    )
