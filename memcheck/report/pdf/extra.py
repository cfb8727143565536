"""The extra for ``--format pdf``: ReportLab, which draws PDF without any other program."""

from __future__ import annotations

from memcheck.errors import UsageError

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
