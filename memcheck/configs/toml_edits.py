"""Values of a TOML config as edits of its text; everything else of the file stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from memcheck.configs.types import REMOVED
from memcheck.finding import Edit, Span
from memcheck.plan.text import split_lines

_TABLE = re.compile(r"\s*\[\s*([\w.\"'-]+)\s*\]\s*(?:#.*)?\Z")
_OTHER_TABLE = re.compile(r"\s*\[\[?")
_ASSIGNMENT = re.compile(r"\s*([\w.\"'-]+)\s*=\s*")
_VALUE = re.compile(
    r'(?!"""|\'\'\')(?:"(?:[^"\\]|\\.)*"|\'[^\']*\'|[\w+.:-]+|\[(?:[^\[\]"\'#]|"(?:[^"\\]|\\.)*"|\'[^\']*\')*\])'
    r"(?=\s*(?:#.*)?\Z)"
)
"""A value that ends on its line."""


def edit_toml(path: str, text: str, values: Mapping[str, object]) -> tuple[Edit, ...]:
    """Edits that give dotted keys of a TOML document these values; empty when one of them has no certain place."""
    lines = split_lines(text)
    places, headers = _places(lines)
    found: list[Edit] = []
    new: dict[str, list[str]] = {}
    for key, value in values.items():
        table, _, name = key.rpartition(".")
        if key in places:
            span = places[key]
            if span is None or value is REMOVED:
                return ()
            found.append(Edit(span, json.dumps(value, ensure_ascii=False)))
        elif value is not REMOVED:
            if not table or any(each.startswith(f"{table}.") for each in places if each.count(".") > key.count(".")):
                return ()
            new.setdefault(table, []).append(f"{name} = {json.dumps(value, ensure_ascii=False)}\n")
    for table, assignments in new.items():
        if table in headers:
            at = headers[table] + 1
            found.append(Edit(Span(at, 1, at, 1), "".join(assignments)))
        else:
            at = len(lines) + 1
            found.append(Edit(Span(at, 1, at, 1), f"\n[{table}]\n{''.join(assignments)}"))
    return _joined(found)


def _places(lines: tuple[str, ...]) -> tuple[dict[str, Span | None], dict[str, int]]:
    """Where values are by dotted key, None for one that does not end on its line; and the lines of table headers."""
    places: dict[str, Span | None] = {}
    headers: dict[str, int] = {}
    table = ""
    for number, line in enumerate(lines, 1):
        opened = _TABLE.match(line)
        if opened is not None:
            table = re.sub("[\"']", "", opened[1]) + "."
            headers.setdefault(table[:-1], number)
            continue
        assigned = _ASSIGNMENT.match(line)
        if assigned is None:
            if _OTHER_TABLE.match(line):
                table = "\0"  # an array of tables, or a line of a long list: no place for a value
            continue
        value = _VALUE.match(line, assigned.end())
        span = None if value is None else Span(number, value.start() + 1, number, value.end() + 1)
        places.setdefault(table + re.sub("[\"']", "", assigned[1]), span)
    return places, headers


def _joined(edits: list[Edit]) -> tuple[Edit, ...]:
    """Insertions at one place as one edit: two of them have no order."""
    texts: dict[Span, str] = {}
    for edit in edits:
        texts[edit.span] = texts.get(edit.span, "") + edit.text
    return tuple(Edit(span, text) for span, text in sorted(texts.items()))
