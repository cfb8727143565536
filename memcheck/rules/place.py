"""Where in the text a finding points."""

from __future__ import annotations

from memcheck.finding import Location
from memcheck.plan.document import Document


def place(document: Document, pointer: str) -> Location:
    """A location on one line: the value if it fits on one, else its key, else the nearest key above that is written.

    Reports underline what they are given, and GitHub drops columns of regions over several lines.
    """
    while pointer and pointer not in document.marks:
        pointer = pointer.rpartition("/")[0]
        mark = document.marks.get(pointer)
        if mark is not None and mark.key is not None:
            return mark.key
    if not pointer:
        pointer = "/memcheck" if "/memcheck" in document.marks else ""
    mark = document.marks[pointer]
    span = mark.value.span
    if span.line == span.end_line:
        return mark.value
    if mark.key is not None:
        return mark.key
    first_line = span._replace(end_line=span.line, end_column=span.column + 1)
    return mark.value._replace(span=first_line)


def stated(document: Document, *pointers: str) -> str:
    """The first of several pointers that the plan writes, or the first one."""
    for pointer in pointers:
        if is_written(document, pointer):
            return pointer
    return pointers[0]


def is_written(document: Document, pointer: str) -> bool:
    """Whether a key has a place of its own, in the plan or in the config that it is taken from.

    What a config leaves to its framework has a mark as well: the place where the config is named.
    """
    mark = document.marks.get(pointer)
    return mark is not None and (mark.key is not None or mark.used_at is not None)
