"""HTML: one file to pass on. ``shell.page`` is the page around any body, ``style.css`` gives it its looks."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.report.html.document import body
from memcheck.report.html.shell import page
from memcheck.report.story.build import story
from memcheck.rules.result import Report


def render(report: Report, screen: Screen | None = None, *, checked: bool = True) -> str:
    """A complete page; the screen plays no part. Not ``checked``: what ``estimate`` has to say."""
    told = story(report, checked=checked)
    return page(told.title, body(told), version=told.version)
