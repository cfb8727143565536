"""The one place where text leaves for the terminal or the log: every line printed goes through here."""

from __future__ import annotations

import os
import sys

from memcheck.edge.inert import inert

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

RUNNERS = ("GITHUB_ACTIONS", "TF_BUILD", "TEAMCITY_VERSION")
"""Variables of CI runners that read commands from what a step prints."""


def put(stream: TextIO, text: str) -> None:
    """Write text for people, with nothing in it that the terminal or a CI runner would obey.

    What stderr cannot take is lost: the exit code has the verdict. Raises BrokenPipeError when the reader has closed
    the pipe.
    """
    _write(stream, inert(text))


def put_over(stream: TextIO, text: str) -> None:
    """Write over the terminal's current line, from its start."""
    _write(stream, "\r" + inert(text))


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError:
        silence()


def silence() -> None:
    """Send the unread rest of stdout and stderr to the null device: the interpreter's last flush must not fail."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # noqa: PERF203 - two streams
            os.dup2(devnull, stream.fileno())
    os.close(devnull)


def open_missing() -> None:
    """Put a stream where the process was started without one: reading or writing it is an error, not a defect.

    Errors alone vanish in silence. A closed descriptor is taken, too: no file that is opened later may get its number.
    """
    for number, (name, flags) in enumerate(
        (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)),
    ):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, flags)  # the lowest that is free
        setattr(sys, name, open(descriptor, "w" if number else "r", closefd=False, encoding="utf-8"))  # noqa: SIM115


def is_log(stream: TextIO) -> bool:
    """Whether people or a CI runner read the stream; a file or another program takes every byte as it is."""
    try:
        if stream.isatty():
            return True
        if not any(os.environ.get(name) for name in RUNNERS):
            return False
        from stat import S_ISREG

        return not S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError, AttributeError):  # closed, or no file at all
        return False


def document(text: str) -> str:
    """A document (a patch, a config) as stdout may have it: as it is for programs, inert where it would be a log."""
    return inert(text) if is_log(sys.stdout) else text
