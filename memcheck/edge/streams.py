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
    """Write text for people, with nothing in it that the terminal or a CI runner would obey."""
    stream.write(inert(text))
    stream.flush()


def put_over(stream: TextIO, text: str) -> None:
    """Write over the terminal's current line, from its start."""
    stream.write("\r" + inert(text))
    stream.flush()


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
