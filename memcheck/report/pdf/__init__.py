"""PDF: the content of the HTML report on paper. Needs the extra ``memcheck[pdf]``."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.report.story.tell import story
from memcheck.result import Report


def render(report: Report, screen: Screen | None = None, *, judged: bool = True) -> bytes:
    """A complete file; the screen plays no part. Not ``judged``: what ``estimate`` has to say."""
    from memcheck.report.pdf.document import document

    return document(story(report, judged=judged))
