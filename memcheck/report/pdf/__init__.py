"""PDF: the content of the HTML report on paper. Needs the extra ``memcheck[pdf]``."""

from __future__ import annotations

from memcheck.edge.screen import Screen
from memcheck.errors import UsageError
from memcheck.report.story.build import story
from memcheck.rules.result import Report


def render(report: Report, screen: Screen | None = None, *, checked: bool = True) -> bytes:
    """A complete file; the screen plays no part. Not ``checked``: what ``estimate`` has to say."""
    from memcheck.report.pdf.document import document  # imports ReportLab, which may be missing

    return document(story(report, checked=checked))


INSTALL = "pip install 'memcheck[pdf]'"


class MissingPdfExtraError(UsageError):
    """ReportLab is not installed, or cannot be imported."""


def require_extra() -> None:
    """Make sure that PDF can be written.

    Raises:
        MissingPdfExtraError: with the command that installs what is missing.
    """
    try:
        import reportlab.platypus  # noqa: F401  # found is not yet usable: its imaging library may be broken
    except ImportError as error:
        raise MissingPdfExtraError(f"--format pdf needs reportlab: {INSTALL} ({error})") from error
