"""A remedy as text edits of the plan file, where that is simple enough to be certain."""

from __future__ import annotations

import json
from collections.abc import Mapping

from memcheck.finding import Edit, Span
from memcheck.source.load import load_documents
from memcheck.source.types import Document


def edits(document: Document, changes: Mapping[str, object], wanted: object) -> tuple[Edit, ...]:
    """Edits that write the changes into the file; empty when one of them has no certain place.

    Values that are written in place are replaced; missing keys are put before the first key of their section. What came
    through an anchor or ``extends`` is left alone. The edited text is read again and must give exactly ``wanted``.
    """
    found: dict[Span, str] = {}
    for key, value in changes.items():
        edit = _edit(document, key.split("."), value)
        if edit is None:
            return ()
        found[edit.span] = found.get(edit.span, "") + edit.text
    made = tuple(Edit(span, text) for span, text in sorted(found.items()))
    return made if _reads_as(document, made, wanted) else ()


def _edit(document: Document, keys: list[str], value: object) -> Edit | None:
    pointer = "/" + "/".join(keys)
    mark = document.marks.get(pointer)
    if mark is not None:
        span = mark.value.span
        here = mark.value.path == document.path and not mark.value.note and mark.used_at is None
        return Edit(span, _text(value)) if here and span.line == span.end_line else None
    parent = pointer.rpartition("/")[0]
    if parent in document.marks and parent:
        return _insert(document, parent, f"{keys[-1]}: {_text(value)}")
    if len(keys) == 2 and parent:
        return _section(document, keys[0], f"{keys[1]}: {_text(value)}")
    return None


def _insert(document: Document, parent: str, line: str) -> Edit | None:
    """Before the first key of a block mapping, or inside the braces of a flow mapping."""
    values = document.values
    for part in parent.split("/")[1:]:
        values = values.get(part) if isinstance(values, dict) else None
    if not isinstance(values, dict) or not values:
        return None
    mark = document.marks.get(f"{parent}/{next(iter(values))}")
    if mark is None or mark.key is None or mark.key.path != document.path or mark.key.note or mark.used_at is not None:
        return None
    span = mark.key.span
    at = Span(span.line, span.column, span.line, span.column)
    before = document.sources[document.path][span.line - 1][: span.column - 1]
    if before.rstrip().endswith("{"):
        return Edit(at, f"{line}, ")
    return None if before.strip() else Edit(at, f"{line}\n{before}")


def _section(document: Document, name: str, line: str) -> Edit | None:
    """A new top-level section before ``training`` or ``inference``."""
    for neighbour in ("/training", "/inference"):
        mark = document.marks.get(neighbour)
        if mark is not None and mark.key is not None and mark.key.path == document.path and mark.key.span.column == 1:
            at = mark.key.span.line
            return Edit(Span(at, 1, at, 1), f"{name}:\n  {line}\n\n")
    return None


def _text(value: object) -> str:
    """A value as YAML flow text; JSON is a subset, and quotes are dropped where YAML needs none."""
    if isinstance(value, str):
        return (
            value if value.replace("-", "").replace("_", "").isalnum() and not value[0].isdigit() else json.dumps(value)
        )
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {_text(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def apply_edits(lines: tuple[str, ...], made: tuple[Edit, ...]) -> str:
    """The text of a file after the edits; they must not overlap."""
    text = [line if line.endswith("\n") else line + "\n" for line in lines]
    for edit in sorted(made, reverse=True):
        span = edit.span
        first, last = text[span.line - 1], text[span.end_line - 1]
        text[span.line - 1 : span.end_line] = [first[: span.column - 1] + edit.text + last[span.end_column - 1 :]]
    return "".join(text)


def _reads_as(document: Document, made: tuple[Edit, ...], wanted: object) -> bool:
    text = apply_edits(document.sources[document.path], made)
    again = load_documents(document.path, text.encode())
    return len(again) > document.index and again[document.index].values == wanted
