"""Edits of values, and their application to the bytes of a file: every other byte stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from memcheck.edge.json_text import written
from memcheck.plan.finding import Edit, Span
from memcheck.plan.places import Document
from memcheck.plan.read import load_documents
from memcheck.plan.text import unbroken


def excerpt(document: Document) -> tuple[str, ...]:
    """Return the lines of the document, of all those of its file."""
    first, end = document.lines
    lines = document.sources[document.path]
    return lines[first:end] if end > first else lines


def moved(edits: Iterable[Edit], lines: int) -> tuple[Edit, ...]:
    """Return the edits, moved down by ``lines`` lines."""
    return tuple(
        Edit(each.span._replace(line=each.span.line + lines, end_line=each.span.end_line + lines), each.text)
        for each in edits
    )


def read_excerpt(document: Document, text: str) -> Document | None:
    """Read the document that a changed excerpt holds, which is at the top of its text; None unless it is one document.

    A document whose lines are not known is read with its whole file.
    """
    found = load_documents(document.path, text.encode())
    if document.lines[1] <= document.lines[0]:
        return next((each for each in found if each.index == document.index), None)
    return found[0] if len(found) == 1 else None


def edits(
    document: Document,
    changes: Mapping[str, object],
    wanted: object,
    order: Mapping[str, Sequence[str]] | None = None,
    removed: Iterable[str] = (),
) -> tuple[Edit, ...]:
    """Return edits that write the changes into the file; empty when one of them has no certain place.

    Values that are written in place are replaced. Missing keys are put before the first key of their section, or where
    the ``order`` of its keys by the section's pointer has them. ``removed`` keys lose their lines. What came through an
    anchor or ``extends`` is left alone. The edited text is read again and must give exactly ``wanted``.
    """
    found: dict[Span, str] = {}
    new: dict[str, list[str]] = {}
    for key, value in _nested(document.values, changes).items():
        keys = key.split(".")
        edit = _edit(document, keys, value, order)
        if edit is not None:
            found[edit.span] = found.get(edit.span, "") + edit.text
        elif len(keys) == 2 and not _own(document, f"/{keys[0]}"):
            new.setdefault(keys[0], []).append(f"  {keys[1]}: {flow_text(value)}\n")
        else:
            return ()
    if new and order is not None:
        for name, lines in new.items():
            edit = _in_order(document, "", name, f"{name}:\n{''.join(lines).rstrip()}", order, apart="\n")
            if edit is None:
                return ()
            found[edit.span] = found.get(edit.span, "") + edit.text
    elif new:
        edit = _sections(document, new)
        if edit is None:
            return ()
        found[edit.span] = edit.text + found.get(edit.span, "")
    for key in removed:
        edit = _removal(document, "/" + key.replace(".", "/"))
        if edit is None:
            return ()
        found[edit.span] = edit.text
    made = tuple(Edit(span, _inside(document, span, text)) for span, text in sorted(found.items()))
    return made if _reads_as(document, made, wanted) else ()


def _nested(values: object, changes: Mapping[str, object]) -> dict[str, object]:
    """Return the changes, with those inside a section that the plan does not have gathered into one value of that
    section.

    ``training.options.a: 1`` of a plan without options becomes ``training.options: {a: 1}``.
    """
    found: dict[str, object] = {}
    made: dict[str, dict[str, object]] = {}
    for key, value in changes.items():
        keys = key.split(".")
        place, depth = values, 0
        while depth < len(keys) and isinstance(place, dict) and keys[depth] in place:
            place, depth = place[keys[depth]], depth + 1
        depth = max(depth, 1)
        if depth >= len(keys) - 1 or (depth > 1 and not isinstance(place, dict)):
            found[key] = value
            continue
        parent = ".".join(keys[: depth + 1])
        inner = made.setdefault(parent, {})
        found[parent] = inner
        for name in keys[depth + 1 : -1]:
            inner = inner.setdefault(name, {})  # type: ignore[assignment]
        inner[keys[-1]] = value
    return found


def _own(document: Document, pointer: str) -> bool:
    """Say whether the value at a pointer is written in this file, for this place alone."""
    mark = document.marks.get(pointer)
    if mark is None or mark.used_at is not None:
        return False
    return mark.value.path == document.path and not mark.value.note


def _edit(document: Document, keys: list[str], value: object, order: Mapping[str, Sequence[str]] | None) -> Edit | None:
    """Return the value in its place, or a new key in a section that this file has; what is inherited is written
    over.
    """
    pointer = "/" + "/".join(keys)
    if _own(document, pointer):
        span = document.marks[pointer].value.span
        if span.line == span.end_line:
            return Edit(span, flow_text(value))
        return _over_lines(document, pointer, value) if order is not None else None
    mark = document.marks.get(pointer)
    if mark is not None and mark.used_at is not None and _written_here(document, pointer):
        return None  # an alias: its anchor may be used elsewhere
    parent, _, name = pointer.rpartition("/")
    line = f"{name}: {flow_text(value)}"
    if order is not None and (not parent or _own(document, parent)):
        return _in_order(document, parent, name, line, order) if parent or len(keys) == 1 else None
    return _insert(document, parent, line) if parent and _own(document, parent) else None


def _over_lines(document: Document, pointer: str, value: object) -> Edit | None:
    """Return a value in the place of one of several lines: a mapping in braces, or a block below its key."""
    mark = document.marks[pointer]
    span = mark.value.span
    if mark.key is None or mark.key.span.end_line == span.line:
        return Edit(span, flow_text(value))
    key = mark.key.span
    return Edit(Span(key.end_line, key.end_column, span.end_line, span.end_column), f": {flow_text(value)}")


def _in_order(
    document: Document, parent: str, name: str, text: str, order: Mapping[str, Sequence[str]], apart: str = ""
) -> Edit | None:
    """Return a new key where the order of its section's keys has it: before the next one there is, or after the last
    one.

    ``apart``: what is between the new key and the next one, such as an empty line. A comment right above a key stays
    with it.
    """
    values = _below(document, parent)
    if not isinstance(values, dict):
        return None
    if not values:
        return _fill(document, parent, text)
    own = [each for each in values if _written_here(document, f"{parent}/{each}")]
    names = list(order.get(parent, ()))
    later = names[names.index(name) + 1 :] if name in names else []
    lines = document.sources[document.path]
    following = next((each for each in own if each in later), None)
    if following is not None:
        span = document.marks[f"{parent}/{following}"].key.span  # type: ignore[union-attr]  # written here
        before = lines[span.line - 1][: span.column - 1]
        if before.strip():
            at = Span(span.line, span.column, span.line, span.column)
            return Edit(at, f"{text}, ") if before.rstrip().endswith(("{", ",")) else None
        line = span.line
        while line > 1 and lines[line - 2].startswith(f"{before}#"):
            line -= 1
        shown = "\n".join(f"{before}{each}" for each in text.split("\n"))
        return Edit(Span(line, 1, line, 1), f"{shown}\n{apart}")
    if not own:
        return None
    last = document.marks[f"{parent}/{own[-1]}"]
    key, span = last.key.span, last.value.span  # type: ignore[union-attr]  # written here
    before = lines[key.line - 1][: key.column - 1]
    if before.strip():
        at = Span(span.end_line, span.end_column, span.end_line, span.end_column)
        return Edit(at, f", {text}") if before.rstrip().endswith(("{", ",")) else None
    end = span.end_line - 1 if span.end_column == 1 and span.end_line > span.line else span.end_line
    place = max(end, key.line)
    column = len(lines[place - 1]) + 1
    shown = "\n".join(f"{before}{each}" for each in text.split("\n"))
    return Edit(Span(place, column, place, column), f"\n{apart}{shown}")


def _below(document: Document, pointer: str) -> object:
    """Return the value at a pointer of plain keys; None where there is none."""
    values = document.values
    for part in pointer.split("/")[1:]:
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _removal(document: Document, pointer: str) -> Edit | None:
    """Return an edit that takes a key and its value out of their mapping; None where they are not written in this
    place.
    """
    if not _own(document, pointer) or not _written_here(document, pointer):
        return None
    mark, parent = document.marks[pointer], pointer.rpartition("/")[0]
    key, span = mark.key.span, mark.value.span  # type: ignore[union-attr]  # written here
    lines = document.sources[document.path]
    before, rest = lines[key.line - 1][: key.column - 1], lines[span.end_line - 1][span.end_column - 1 :]
    if not before.strip():
        end = span.end_line if span.end_column == 1 and span.end_line > key.line else span.end_line + 1
        return Edit(Span(key.line, 1, end, 1), "") if not rest.strip() or rest.lstrip()[0] == "#" else None
    if rest.lstrip().startswith(","):
        blank = len(rest) - len(rest.lstrip()) + 1
        blank += len(rest[blank:]) - len(rest[blank:].lstrip())
        return Edit(Span(key.line, key.column, span.end_line, span.end_column + blank), "")
    siblings = _below(document, parent)
    names = list(siblings) if isinstance(siblings, dict) else []
    place = names.index(pointer.rpartition("/")[2]) if names else 0
    start = document.marks[f"{parent}/{names[place - 1]}"].value.span if place else None
    if start is None:
        return Edit(Span(key.line, key.column, span.end_line, span.end_column), "")
    return Edit(Span(start.end_line, start.end_column, span.end_line, span.end_column), "")


def _insert(document: Document, parent: str, line: str) -> Edit | None:
    """Before the first key of a block mapping, or inside the braces of a flow mapping."""
    values = _below(document, parent)
    if not isinstance(values, dict):
        return None
    if not values:
        return _fill(document, parent, line)
    first = next((name for name in values if _written_here(document, f"{parent}/{name}")), None)
    mark = document.marks.get(f"{parent}/{first}")
    if first is None or mark is None or mark.key is None:
        return None
    span = mark.key.span
    at = Span(span.line, span.column, span.line, span.column)
    before = document.sources[document.path][span.line - 1][: span.column - 1]
    if before.rstrip().endswith("{"):
        return Edit(at, f"{line}, ")
    return None if before.strip() else Edit(at, f"{line}\n{before}")


def _fill(document: Document, parent: str, line: str) -> Edit | None:
    """Inside the braces of an empty flow mapping."""
    span = document.marks[parent].value.span
    text = document.sources[document.path][span.line - 1]
    if span.line != span.end_line or text[span.column - 1 : span.end_column - 1] != "{}":
        return None
    return Edit(Span(span.line, span.column + 1, span.line, span.column + 1), f"{line}, ")


def _inside(document: Document, span: Span, text: str) -> str:
    """Return the text to insert at ``span``. Its last comma is dropped where a closing brace follows."""
    if (span.line, span.column) == (span.end_line, span.end_column) and text.endswith(", "):
        behind = document.sources[document.path][span.line - 1][span.column - 1 :]
        return text[:-2] if behind.startswith("}") else text
    return text


def _written_here(document: Document, pointer: str) -> bool:
    mark = document.marks.get(pointer)
    return mark is not None and mark.key is not None and mark.key.path == document.path and not mark.key.note


def _sections(document: Document, new: Mapping[str, list[str]]) -> Edit | None:
    """Return new top-level sections before ``training`` or ``inference``, or before the last section that the file
    has.
    """
    for neighbour in ("/training", "/inference", "/hardware", "/model", "/memcheck"):
        mark = document.marks.get(neighbour)
        if mark is not None and mark.key is not None and mark.key.path == document.path and mark.key.span.column == 1:
            at = mark.key.span.line
            text = "".join(f"{name}:\n{''.join(lines)}\n" for name, lines in new.items())
            return Edit(Span(at, 1, at, 1), text)
    return None


def flow_text(value: object) -> str:
    """Return a value as YAML flow text; JSON is a subset, and quotes are dropped where YAML needs none."""
    if isinstance(value, str):
        plain = value.replace("-", "").replace("_", "").replace(".", "").isalnum() and value[0].isalpha()
        return value if plain else written(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k}: {flow_text(v)}" for k, v in value.items()) + "}"
    if value is None or isinstance(value, int):
        return written(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(flow_text, value)) + "]"
    import json

    text = json.dumps(value)
    mantissa, exponent, power = text.partition("e")
    return f"{mantissa}.0e{power}" if exponent and "." not in mantissa else text  # YAML 1.1 takes 1e-08 for text


def apply_edits(lines: tuple[str, ...], made: tuple[Edit, ...]) -> str:
    """Return the text of a file after the edits; they must not overlap."""
    text = [line if line.endswith("\n") else line + "\n" for line in lines]
    whole = "".join(text)
    starts = [0, *accumulate(map(len, text))]
    parts, at = [], 0
    for edit in sorted(made):
        span = edit.span
        parts += [whole[at : starts[span.line - 1] + span.column - 1], edit.text]
        at = starts[span.end_line - 1] + span.end_column - 1
    return "".join([*parts, whole[at:]])


def _reads_as(document: Document, made: tuple[Edit, ...], wanted: object) -> bool:
    lines = excerpt(document)
    again = read_excerpt(document, apply_edits(lines, moved(made, -document.lines[0])))
    return again is not None and again.values == wanted


BOM = "\ufeff"


def edited(data: bytes, edits: Iterable[Edit]) -> bytes:
    """Return the file after disjoint edits; line ends in their texts become those of the line they are made on."""
    text = data.decode("utf-8")
    start = len(BOM) if text.startswith(BOM) else 0
    lines = unbroken(text[start:]).splitlines(keepends=True)
    offsets = [start, *accumulate((len(line) for line in lines), initial=start)][1:]

    def offset(line: int, column: int) -> int:
        return offsets[line - 1] + column - 1

    parts, at = [], 0
    for edit in sorted(set(edits)):
        span = edit.span
        first = offset(span.line, span.column)
        parts += [text[at:first], edit.text.replace("\n", line_end(lines, span.line))]
        at = offset(span.end_line, span.end_column)
    return "".join([*parts, text[at:]]).encode("utf-8")


def line_end(lines: Sequence[str], number: int) -> str:
    """Return how a line ends, or the one before it if it is the last."""
    for line in (lines[index] for index in range(min(number, len(lines)) - 1, -1, -1)):
        for end in ("\r\n", "\n", "\r"):
            if line.endswith(end):
                return end
    return "\n"
