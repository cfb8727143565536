"""What the machine's files said while a plan was judged: a verdict that is kept counts while they say the same.

Whatever is asked of files on the way from a plan's text to its verdict is asked here or in
:mod:`memcheck.edge.opener`, so that nothing that a verdict rests on goes unnoticed.
"""

from __future__ import annotations

import os

_heard: list[tuple[str, str, int, str]] | None = None


def listen() -> None:
    """Take down from now on what is asked and answered."""
    global _heard  # noqa: PLW0603 - one plan is judged at a time in a process
    _heard = []


def heard() -> list[tuple[str, str, int, str]]:
    """Every question since :func:`listen`, each with its path, its limit in bytes and the answer, and no more of it."""
    global _heard
    found, _heard = _heard or [], None
    return found


def is_listening() -> bool:
    """Whether anybody wants to know."""
    return _heard is not None


def note(question: str, path: str, answer: str, limit: int = 0) -> None:
    """Take down one answer."""
    if _heard is not None:
        entry = (question, path, limit, answer)
        if entry not in _heard:
            _heard.append(entry)


def is_file(path: str) -> bool:
    """Whether a path is a regular file, or a link to one."""
    found = os.path.isfile(path)
    note("is_file", path, str(found))
    return found


def is_folder(path: str) -> bool:
    """Whether a path is a folder, or a link to one."""
    found = os.path.isdir(path)
    note("is_folder", path, str(found))
    return found


def exists(path: str) -> bool:
    """Whether there is anything under a path."""
    found = os.path.exists(path)
    note("exists", path, str(found))
    return found


def real_path(path: str) -> str:
    """The absolute path without links; of a name that no file can have, the path as it is written."""
    try:
        found = os.path.realpath(path)
    except ValueError:  # a zero byte, or half a surrogate pair: whoever opens it says so
        found = os.path.abspath(path)
    note("real_path", path, found)
    return found


def today() -> str:
    """The day in UTC, as YYYY-MM-DD."""
    import time

    found = time.strftime("%Y-%m-%d", time.gmtime())
    note("today", "", found)
    return found
