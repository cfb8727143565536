"""A priced change as a remedy: with the edits that write it into the file."""

from __future__ import annotations

from memcheck.finding import SAME_RESULT, Edit, FileEdits, Remedy
from memcheck.plan.changes import with_changes
from memcheck.plan.document import Document
from memcheck.plan.value_edits import edits
from memcheck.what_if.remedies.types import Priced


def remedy_of(priced: Priced, document: Document) -> Remedy:
    """The remedy; its edits are empty where one of them has no certain place."""
    own, elsewhere = edits_of(priced, document)
    return Remedy(
        title=priced.candidate.title,
        set=dict(priced.changes),
        device_bytes=priced.estimate.device_bytes,
        utilization=priced.estimate.utilization,
        slowdown=None if priced.slowdown is None else round(priced.slowdown, 3),
        safe=priced.group == SAME_RESULT,
        group=priced.group,
        host_bytes_per_node=priced.estimate.host_bytes_per_node,
        interval_bytes=priced.estimate.interval_bytes,
        needed_bytes=priced.estimate.needed_bytes,
        needed_interval_bytes=priced.estimate.needed_interval_bytes,
        sure=priced.sure,
        role=priced.role,
        edits=own,
        elsewhere=elsewhere,
    )


def edits_of(priced: Priced, document: Document) -> tuple[tuple[Edit, ...], tuple[FileEdits, ...]]:
    """Edits of the plan's own file, and of the configs that it takes values from."""
    if isinstance(document.values, dict) and "source" in document.values:
        from memcheck.configs.sourced_edits import sourced_edits

        return sourced_edits(document, priced.changes, priced.resolved)
    return edits(document, priced.changes, with_changes(document, priced.changes).values), ()
