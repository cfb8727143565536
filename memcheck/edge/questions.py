"""Whether the machine's files still say what was taken down of them (:mod:`memcheck.edge.observed`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memcheck.edge import observed, opener

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def holds(notes: Iterable[Any]) -> bool:
    """Whether every answer is today's. A note is a question, a path, a limit in bytes and the answer."""
    return all(says(question, path, limit) == answer for question, path, limit, answer in notes)


def says(question: str, path: str, limit: int) -> str:
    """Today's answer to a question."""
    return QUESTIONS[question](path, limit)


def _start(path: str, limit: int) -> str:
    try:
        return opener.digest(opener.read_start(path, limit))
    except OSError as error:
        return opener.described(error)


QUESTIONS: dict[str, Callable[[str, int], str]] = {
    "start": _start,
    "is_file": lambda path, limit: str(observed.is_file(path)),
    "is_folder": lambda path, limit: str(observed.is_folder(path)),
    "exists": lambda path, limit: str(observed.exists(path)),
    "real_path": lambda path, limit: observed.real_path(path),
    "repository": lambda path, limit: repr(opener.repository(path)),
    "today": lambda path, limit: observed.today(),
}
"""What can be asked of files, under the names of the notes."""
