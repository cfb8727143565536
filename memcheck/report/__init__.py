"""Report formats: one module each, with ``render(report, screen) -> str`` over plain records.

Adding a format is one module and one line in :data:`FORMATS`. Modules are named, not imported: a run pays for the
formats that it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable

FORMATS = {
    "full": "memcheck.report.full",
    "concise": "memcheck.report.concise",
    "brief": "memcheck.report.brief",
    "json": "memcheck.report.json",
    "github": "memcheck.report.github",
    "markdown": "memcheck.report.markdown",
    "jsonl": "memcheck.report.jsonl",
    "csv": "memcheck.report.csv",
    "html": "memcheck.report.html",
    "pdf": "memcheck.report.pdf",
    "story": "memcheck.report.story.data",
    "sarif": "memcheck.report.sarif",
    "junit": "memcheck.report.junit",
    "gitlab": "memcheck.report.gitlab",
    "checkstyle": "memcheck.report.checkstyle",
    "rdjson": "memcheck.report.rdjson",
}

WITH_DOSSIER = frozenset({"html", "pdf", "story"})
"""Formats that show more than the verdict needs: plans are asked for it where one of them is wanted."""

WITH_GROUNDS = frozenset({"full", "json", "jsonl", "html", "pdf", "story", "github"})
"""Formats that list, for a plan that passes, the assumptions that its verdict depends on."""

BINARY = frozenset({"pdf"})
"""Formats that are bytes: they go to a file."""


def renderer(name: str) -> Callable[..., str | bytes]:
    """The render function of one of :data:`FORMATS`; those that ``estimate`` has, too, also take ``judged``."""
    from memcheck.edge.modules import import_module

    render: Callable[..., str | bytes] = import_module(FORMATS[name]).render
    return render
