"""The JSON report in lines: one object per plan, per finding and per unreadable path, the summary last.

For logs, ``jq`` and databases. Objects have the fields of ``schemas/report.schema.json`` and a ``type``.
"""

from __future__ import annotations

from memcheck.edge.json_text import dumps
from memcheck.edge.screen import Screen
from memcheck.report.json import diagnostic, plan_record, summary
from memcheck.result import Report


def render(report: Report, screen: Screen | None = None) -> str:
    """The lines; the screen plays no part."""
    return "".join(dumps(record) + "\n" for record in records(report))


def records(report: Report) -> list[dict[str, object]]:
    """Each plan, followed by its findings, which name it."""
    found: list[dict[str, object]] = []
    for plan in report.plans:
        found.append({"type": "plan", **plan_record(plan, diagnostics=False)})
        owner = {"path": plan.path, "document": plan.document, "plan": plan.name}
        found += [{"type": "diagnostic", **owner, **diagnostic(plan, finding)} for finding in plan.findings]
    found += [{"type": "unreadable", "path": item.path, "message": item.message} for item in report.unreadable]
    found.append({"type": "summary", "report": 1, "memcheck": report.version, **summary(report)})
    return found
