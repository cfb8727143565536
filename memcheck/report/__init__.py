"""Report formats: one function each, ``render(report, screen) -> str`` over plain records.

Adding a format is one function and one line in :data:`FORMATS`, which names its module, and the function where that is
not ``render``. Modules are named, not imported: a run pays for the formats that it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.edge.imports import import_module

FORMATS = {
    "full": "memcheck.report.full",
    "concise": "memcheck.report.brief:concise",
    "brief": "memcheck.report.brief",
    "json": "memcheck.report.json",
    "github": "memcheck.report.github",
    "markdown": "memcheck.report.markdown",
    "jsonl": "memcheck.report.json:lines",
    "csv": "memcheck.report.csv",
    "html": "memcheck.report.html",
    "pdf": "memcheck.report.pdf",
    "story": "memcheck.report.story.build",
    "sarif": "memcheck.report.sarif",
    "junit": "memcheck.report.ci:junit",
    "gitlab": "memcheck.report.ci:gitlab",
    "checkstyle": "memcheck.report.ci:checkstyle",
    "rdjson": "memcheck.report.ci:rdjson",
}

WITH_DOSSIER = frozenset({"html", "pdf", "story"})
"""Formats that show more than the verdict needs: plans are asked for it where one of them is wanted."""

WITH_PAGE_LINKS = frozenset({"html", "markdown", "story"})
"""Formats that link each plan to the page, where the configuration says where the page is."""

WITH_GROUNDS = frozenset({"full", "json", "jsonl", "html", "pdf", "story", "github"})
"""Formats that list, for a plan that passes, the assumptions that its verdict depends on."""

DOCS_URL = "MEMCHECK_DOCS_URL"
"""The environment variable that names the published folder of rule pages (``docs/rules`` of a repository)."""

BINARY = frozenset({"pdf"})
"""Formats that are bytes: they go to a file."""


def renderer(name: str) -> Callable[..., str | bytes]:
    """The render function of one of :data:`FORMATS`; those that ``estimate`` has, too, also take ``checked``."""
    module, _, function = FORMATS[name].partition(":")
    render: Callable[..., str | bytes] = getattr(import_module(module), function or "render")
    return render
