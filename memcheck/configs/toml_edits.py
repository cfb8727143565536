"""Values of a TOML config as edits of its text; everything else of the file stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import Any

from memcheck.configs.types import REMOVED
from memcheck.finding import Edit, Span
from memcheck.plan.text import split_lines

_MARK = "\ue000"
"""What is written at a place to find it; of a private area of Unicode, so that no config holds it."""


class _NoPlaceError(Exception):
    """No single edit of the text gives the key a value."""


def edit_toml(path: str, text: str, values: Mapping[str, object]) -> tuple[Edit, ...]:
    """Edits that give dotted keys of a TOML document these values; empty when one of them has no certain place."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    found: dict[Span, str] = {}
    new: dict[str, str] = {}
    try:
        for key, value in values.items():
            span = _value(text, key)
            if value is REMOVED:
                if span is not None:
                    return ()
                continue
            literal = tomlkit.item(value).as_string()
            if span is not None:
                found[span] = literal
            else:
                table, _, name = key.rpartition(".")
                new[table] = f"{new.get(table, '')}{name} = {literal}\n"
        for table, assignments in new.items():
            span, header = _head(text, table)
            found[span] = found.get(span, "") + header + assignments
    except (_NoPlaceError, TOMLKitError):
        return ()
    return tuple(Edit(span, each) for span, each in sorted(found.items()))


@lru_cache(maxsize=256)
def _value(text: str, key: str) -> Span | None:
    """Where the value of a key is, which ends on its line; None when the document does not have the key."""
    import tomlkit

    *above, name = key.split(".")
    document = tomlkit.parse(text)
    table = _table(document, above)
    if table is None or name not in table:
        return None
    table[name] = _MARK
    before, _, after = document.as_string().partition(f'"{_MARK}"')
    old = text[len(before) : len(text) - len(after)]
    if before + old + after != text or len(split_lines(old)) != 1:
        raise _NoPlaceError
    line, column = _behind(before)
    return Span(line, column, line, column + len(old))


@lru_cache(maxsize=256)
def _head(text: str, name: str) -> tuple[Span, str]:
    """Below the header of a table; or the end of the document, and the header that is missing there."""
    import tomlkit
    from tomlkit.items import Table

    document = tomlkit.parse(text)
    table = _table(document, name.split("."))
    if table is None:
        header = f"\n[{name}]\n"
        tomlkit.parse(text + header)  # an error where the table stands already, in braces or in dotted keys
        at = len(split_lines(text)) + 1
        return Span(at, 1, at, 1), header
    if isinstance(table, Table):
        table.comment(_MARK)
    before, mark, _ = document.as_string().partition(_MARK)
    if not mark:
        raise _NoPlaceError
    at = _behind(before)[0] + 1
    return Span(at, 1, at, 1), ""


def _table(document: MutableMapping[str, Any], names: list[str]) -> MutableMapping[str, Any] | None:
    """A table of the document, None when it is not there."""
    for name in names:
        if name not in document:
            return None
        document = document[name]
        if not isinstance(document, MutableMapping):
            raise _NoPlaceError
    return document


def _behind(text: str) -> tuple[int, int]:
    """Line and column of what follows a text."""
    lines = split_lines(text + _MARK)
    return len(lines), len(lines[-1])
