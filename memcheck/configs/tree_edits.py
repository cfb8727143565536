"""Values of a JSON or YAML config as edits of its text; everything else of the file stays as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memcheck.configs.config_file import composed
from memcheck.configs.types import REMOVED, ConfigError
from memcheck.edge.libyaml import yaml
from memcheck.finding import Edit, Span
from memcheck.plan.places import Collection, Marks, pointer_of
from memcheck.plan.text import split_lines
from memcheck.plan.value_edits import flow_text


def edit_json(path: str, text: str, values: Mapping[str, object]) -> tuple[Edit, ...]:
    """Edits that give dotted keys of a JSON object these values; empty when one of them has no certain place."""
    return _edits(path, text, {tuple(key.split(".")): value for key, value in values.items()}, _JsonText())


def edit_yaml(path: str, text: str, values: Mapping[str, object]) -> tuple[Edit, ...]:
    """Edits that give dotted keys of a YAML mapping these values; empty when one of them has no certain place."""
    return _edits(path, text, {tuple(key.split(".")): value for key, value in values.items()}, _YamlText())


def edit_argument_yaml(path: str, text: str, values: Mapping[str, object], section: str) -> tuple[Edit, ...]:
    """Edits that give command-line arguments in a section of a YAML file these values; empty if one has no place."""
    return _edits(path, text, {(section, f"--{name}"): value for name, value in values.items()}, _YamlText())


class _JsonText:
    """Keys and values as JSON spells them."""

    def value(self, value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    def entry(self, name: str, value: object) -> str:
        return f"{json.dumps(name)}: {self.value(value)}"


class _YamlText:
    """Keys and values as YAML spells them, quoted where a plain word would mean something else."""

    def value(self, value: object) -> str:
        plain = flow_text(value)
        return plain if yaml.safe_load(plain) == value else json.dumps(value, ensure_ascii=False)

    def entry(self, name: str, value: object) -> str:
        return f"{name}: {self.value(value)}"


def _edits(
    path: str, text: str, values: Mapping[tuple[str, ...], object], spelling: _JsonText | _YamlText
) -> tuple[Edit, ...]:
    try:
        root = composed(path, text).root
    except ConfigError:
        return ()  # JSON that is indented with tabs is no YAML
    lines = split_lines(text)
    marks = Marks(path, root, {path: lines})
    found: dict[Span, str] = {}
    new: dict[tuple[str, ...], dict[str, Any]] = {}
    for parts, value in values.items():
        mark = marks.get(pointer_of(parts))
        if mark is None:
            if value is not REMOVED:
                _plant(new, marks, parts, value)
            continue
        span = mark.value.span
        if value is REMOVED or mark.used_at is not None or span.line != span.end_line:
            return ()
        empty = (span.line, span.column) == (span.end_line, span.end_column)
        found[span] = " " * empty + spelling.value(value)
    for above, entries in new.items():
        edit = _insertion(root, marks, lines, above, [spelling.entry(name, each) for name, each in entries.items()])
        if edit is None:
            return ()
        found[edit.span] = edit.text
    return tuple(Edit(span, each) for span, each in sorted(found.items()))


def _plant(new: dict[tuple[str, ...], dict[str, Any]], marks: Marks, parts: tuple[str, ...], value: object) -> None:
    """Put a value under the deepest mapping above it that the file has."""
    depth = len(parts) - 1
    while depth and pointer_of(parts[:depth]) not in marks:
        depth -= 1
    table = new.setdefault(parts[:depth], {})
    for part in parts[depth:-1]:
        table = table.setdefault(part, {})
    table[parts[-1]] = value


def _insertion(
    root: Any, marks: Marks, lines: tuple[str, ...], above: tuple[str, ...], entries: list[str]
) -> Edit | None:
    """Before the first key of a mapping, on its line or, where keys stand on lines of their own, on new ones."""
    block = root
    for part in above:
        entry = block.child(part) if isinstance(block, Collection) else None
        if entry is None or entry[2] is not None:
            return None
        block = entry[1]
    if not isinstance(block, Collection) or not isinstance(block.items, dict) or not block.items:
        return None
    name, first = next(iter(block.items.items()))
    if first[2] is not None:
        return None  # a merge key stands there
    mark = marks[pointer_of((*above, name))]
    if mark.key is None:
        return None
    span = mark.key.span
    at = Span(span.line, span.column, span.line, span.column)
    before = lines[span.line - 1][: span.column - 1]
    between = f"\n{before}" if not before.strip() else " "
    if block.start.flow_style:
        return Edit(at, "".join(f"{entry},{between}" for entry in entries))
    return Edit(at, "".join(f"{entry}{between}" for entry in entries)) if not before.strip() else None
