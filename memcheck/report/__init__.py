"""Report formats: one module each, with ``render(report, screen) -> str`` over plain records.

Adding a format is one module and one line in :data:`FORMATS`. Modules are named, not imported: a run pays for the
formats that it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.report.screen import Screen
from memcheck.result import Report

FORMATS = {
    "full": "memcheck.report.full",
    "concise": "memcheck.report.concise",
    "json": "memcheck.report.json",
    "github": "memcheck.report.github",
    "markdown": "memcheck.report.markdown",
    "jsonl": "memcheck.report.jsonl",
    "csv": "memcheck.report.csv",
    "sarif": "memcheck.report.sarif",
    "junit": "memcheck.report.junit",
    "gitlab": "memcheck.report.gitlab",
    "checkstyle": "memcheck.report.checkstyle",
    "rdjson": "memcheck.report.rdjson",
}


def renderer(name: str) -> Callable[[Report, Screen], str]:
    """The render function of one of :data:`FORMATS`."""
    from importlib import import_module

    render: Callable[[Report, Screen], str] = import_module(FORMATS[name]).render
    return render
