"""What the machine's files said while a plan was checked: a kept verdict is valid as long as they say the same.

Every question about files between a plan's text and its verdict is asked here or in :mod:`memcheck.edge.opener`, so
that all files that a verdict depends on are noted.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.edge.in_memory import FilesInMemory

_files: FilesInMemory | None = None
_heard: dict[tuple[str, str, int, str], None] | None = None


def listen() -> None:
    """Take down from now on what is asked and answered."""
    global _heard  # noqa: PLW0603 - one plan is judged at a time in a process
    _heard = {}


def heard() -> list[tuple[str, str, int, str]]:
    """Every question since :func:`listen`, each with its path, its limit in bytes and the answer, and no more of it."""
    global _heard
    found, _heard = list(_heard or ()), None
    return found


class Overheard:
    """What is asked between two points, which whoever listens hears as well."""

    def __init__(self) -> None:
        self._outer = _heard
        self.notes: tuple[tuple[str, str, int, str], ...] = ()
        """What was asked, once it has ended."""
        listen()

    def end(self) -> None:
        """Hand on what was asked."""
        global _heard
        self.notes, _heard = tuple(heard()), self._outer
        for question, path, limit, answer in self.notes:
            note(question, path, answer, limit)


def is_listening() -> bool:
    """Whether a listener takes down the answers."""
    return _heard is not None


def note(question: str, path: str, answer: str, limit: int = 0) -> None:
    """Record the answer of a file to a question, for the listener, if there is one."""
    if _heard is not None:
        _heard[question, path, limit, answer] = None


def look_at(files: FilesInMemory | None) -> FilesInMemory | None:
    """Ask these files from now on, or the disk where it is None; what was asked so far is returned."""
    global _files
    before, _files = _files, files
    return before


def in_memory() -> FilesInMemory | None:
    """The files that are asked instead of the disk; None: the disk is asked."""
    return _files


def is_file(path: str) -> bool:
    """Whether a path is a regular file, or a link to one."""
    found = os.path.isfile(path) if _files is None else _files.is_file(path)
    note("is_file", path, str(found))
    return found


def is_folder(path: str) -> bool:
    """Whether a path is a folder, or a link to one."""
    found = os.path.isdir(path) if _files is None else _files.is_folder(path)
    note("is_folder", path, str(found))
    return found


def exists(path: str) -> bool:
    """Whether there is anything under a path."""
    found = os.path.exists(path) if _files is None else _files.exists(path)
    note("exists", path, str(found))
    return found


def real_path(path: str) -> str:
    """The absolute path without links; of a name that no file can have, the path as it is written."""
    try:
        found = os.path.realpath(path) if _files is None else _files.real_path(path)
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
