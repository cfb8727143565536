"""Sends finished text to where it was asked for."""

from __future__ import annotations

import os
import sys

from memcheck.cli.guard import silence
from memcheck.errors import UsageError

APPENDED = ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")
"""Files of the runner that other tools of the same step write too."""


def write(file: str | None, text: str) -> None:
    """Send a report to a file, or print it.

    Raises:
        UsageError: the file cannot be written.
    """
    if file is None:
        write_stdout(text)
    else:
        write_file(file, text)


def write_stdout(text: str) -> None:
    """Print; characters that the encoding lacks become escapes, and a reader that left is no error."""
    stream = sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        silence()


def write_file(path: str, text: str) -> None:
    """Write a report file as UTF-8; the runner's own files are appended to.

    Raises:
        UsageError: the file cannot be written.
    """
    mode = "a" if path in {os.environ.get(name) for name in APPENDED} else "w"
    try:
        with open(path, mode, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write the report to {path}: {error.strerror or error}") from error
