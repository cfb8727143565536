"""One document of a file as a text of its own: what an edit of it changes is read again without the others."""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.finding import Edit
from memcheck.plan.document import Document
from memcheck.plan.load import load_documents


def excerpt(document: Document) -> tuple[str, ...]:
    """The lines of the document, of all those of its file."""
    first, end = document.lines
    lines = document.sources[document.path]
    return lines[first:end] if end > first else lines


def moved(edits: Iterable[Edit], lines: int) -> tuple[Edit, ...]:
    """The edits, moved down by ``lines`` lines."""
    return tuple(
        Edit(each.span._replace(line=each.span.line + lines, end_line=each.span.end_line + lines), each.text)
        for each in edits
    )


def read_excerpt(document: Document, text: str) -> Document | None:
    """The document that a changed excerpt holds, which is at the top of its text; None unless it is one document.

    A document whose lines are not known is read with its whole file.
    """
    found = load_documents(document.path, text.encode())
    if document.lines[1] <= document.lines[0]:
        return next((each for each in found if each.index == document.index), None)
    return found[0] if len(found) == 1 else None
