"""Changes of a config's text at their lines, in TOML, YAML, JSON and arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, MutableMapping
from functools import lru_cache
from typing import Any

from memcheck.configs import read_accelerate as accelerate_keys
from memcheck.configs import read_deepspeed as deepspeed_keys
from memcheck.configs import read_megatron as megatron_keys
from memcheck.configs import read_torchtitan as torchtitan_keys
from memcheck.configs.arguments import YAML_SECTION, load_arguments
from memcheck.configs.config_file import composed
from memcheck.configs.config_writer import spelled
from memcheck.configs.key_table import key_table
from memcheck.configs.read_megatron import DIMENSIONS, LISTS
from memcheck.configs.types import REMOVED, ConfigError, KeyRow
from memcheck.edge.libyaml import yaml
from memcheck.plan.finding import Edit, Span
from memcheck.plan.places import Collection, Marks, pointer_of
from memcheck.plan.text import split_lines
from memcheck.plan.value_edits import flow_text
from memcheck.record import Record


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


ANCHORS = tuple(row.path for row in (*key_table("megatron").rows["layout"], *DIMENSIONS))
"""Arguments of the training script, never of the launcher before it. New arguments are put before one of these."""
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'()#;|&<>\\])+""")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?\Z")


def edit_arguments(path: str, text: str, values: Mapping[str, object]) -> tuple[Edit, ...]:
    """Edits that give arguments these values; empty when one of them has no certain place.

    True is a switch, False and ``REMOVED`` are an argument that is not there.
    """
    if re.search(rf"^{YAML_SECTION}\s*:", text, re.MULTILINE):
        return edit_argument_yaml(path, text, values, YAML_SECTION)
    lines = split_lines(text)
    config = load_arguments(path, text, LISTS)
    found: list[Edit] = []
    new: list[str] = []
    for name, value in values.items():
        gone = value is REMOVED or value is False
        if name not in config.values:
            new += [] if gone else [_spelling(name, value)]
            continue
        flag = config.at(name).span
        edit = _removal(lines, flag, name) if gone else _replacement(lines, flag, name, value)
        if edit is None:
            return ()
        found.append(edit)
    if new:
        anchor = next((name for name in ANCHORS if name in config.values and name not in values), "")
        anchor = anchor or next((name for name in ANCHORS if name in config.values and values[name] is not REMOVED), "")
        if not anchor:
            return ()
        at = config.at(anchor).span
        found.append(Edit(Span(at.line, at.column, at.line, at.column), "".join(f"{each} " for each in new)))
    return tuple(sorted(found))


def _spelling(name: str, value: object) -> str:
    return f"--{name}" if value is True else f"--{name} {_word(value)}"


def _word(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(_word, value))
    text = spelled(value)
    return f'"{text}"' if set(text) & set("()|*[]{}$;&<> ") else text


def _replacement(lines: tuple[str, ...], flag: Span, name: str, value: object) -> Edit | None:
    """The argument's value in its place, or in that of the variable which is used for nothing else."""
    line = lines[flag.line - 1]
    start, end = flag.column - 1, flag.end_column - 1
    if "=" in line[start:end]:
        start += line[start:end].index("=") + 1
    elif value is True:
        return None if name in LISTS else Edit(flag, f"--{name}")
    else:
        following = list(_values(line, end))
        if len(following) != 1 and not (name in LISTS and following):
            return None
        start, end = following[0][0], following[-1][1]
    return _assignment(lines, line[start:end], value) or Edit(_span(flag.line, start, end), _word(value))


def _values(line: str, end: int) -> list[tuple[int, int]]:
    """Start and end columns of the words after an argument on its line, up to the next argument. ``end``: its end."""
    code = re.sub(r"(^|\s)#.*", lambda comment: " " * len(comment[0]), line)
    found: list[tuple[int, int]] = []
    for word in _WORD.finditer(code, end):
        between = code[found[-1][1] if found else end : word.start()]
        if word[0].startswith("--") or re.search(r"[()#;|&<>\\]", between):
            break
        found.append((word.start(), word.end()))
    return found


def _assignment(lines: tuple[str, ...], word: str, value: object) -> Edit | None:
    """Where a variable gets its value, if the file uses it once and sets it once."""
    variable = _VARIABLE.match(word.strip("\"'"))
    if variable is None:
        return None
    name = variable[1]
    if sum(len(re.findall(rf"\$\{{?{name}\b", line)) for line in lines) != 1:
        return None
    settings = [
        (number, match)
        for number, line in enumerate(lines, 1)
        if (match := re.match(rf"\s*(?:export\s+)?{name}=([^\s()\"'#]+)\s*(?:#.*)?\Z", line))
    ]
    if len(settings) != 1:
        return None
    ((number, match),) = settings
    return Edit(_span(number, match.start(1), match.end(1)), _word(value))


def _removal(lines: tuple[str, ...], flag: Span, name: str) -> Edit | None:
    """The edit that removes an argument, its value and the space after them. The line and its continuation stay.

    None for an argument of one value that several words follow.
    """
    line = lines[flag.line - 1]
    start, end = flag.column - 1, flag.end_column - 1
    if "=" not in line[start:end]:
        following = _values(line, end)
        if len(following) > 1 and name not in LISTS:
            return None
        end = following[-1][1] if following else end
    end += len(line[end:]) - len(line[end:].lstrip(" ")) if line[end:].strip() else 0
    return Edit(_span(flag.line, start, end), "")


def _span(line: int, start: int, end: int) -> Span:
    return Span(line, start + 1, line, end + 1)


class Editor(Record):
    """One format as text that is changed."""

    edit: Callable[[str, str, Mapping[str, object]], tuple[Edit, ...]]
    """Path, text and new values by key; no edits where one of them has no certain place."""
    rows: tuple[KeyRow, ...]
    """Keys that stand for exactly one key of the plan."""
    same: tuple[tuple[str, ...], ...] = ()
    """Names of the same thing, the one that is written first."""
    together: tuple[tuple[str, ...], ...] = ()
    """Keys that say one thing only together: a new batch is stated whole, or its parts would follow from defaults."""

    def names(self, key: str) -> tuple[str, ...]:
        """Every name that a key has or had."""
        found = [key]
        for row in self.rows:
            if row.path == key:
                found += row.aliases
        for group in self.same:
            if key in group:
                found += [each for each in group if each != key]
        return tuple(found)

    def key_of(self, name: str) -> str:
        """The plan key that a key stands for alone; empty when there is none."""
        return next((row.key for row in self.rows if row.path == name), "")


EDITORS = {
    "deepspeed": Editor(
        edit=edit_json,
        rows=key_table("deepspeed").rows["rows"],
        same=(key_table("deepspeed").names["bf16"],),
        together=((deepspeed_keys.MICRO, deepspeed_keys.STEPS, deepspeed_keys.TOTAL),),
    ),
    "accelerate": Editor(
        edit_yaml,
        (*key_table("accelerate").rows["degrees"], *key_table("accelerate").rows["engine"]),
        ((accelerate_keys.BACKEND, accelerate_keys.OLD_BACKEND),),
    ),
    "torchtitan": Editor(
        edit=edit_toml,
        rows=(
            *key_table("torchtitan").rows["rows"],
            key_table("torchtitan").row("parallelism.pipeline_parallel_schedule"),
        ),
        same=(
            key_table("torchtitan").names["local_batch"],
            key_table("torchtitan").names["replicate"],
            key_table("torchtitan").names["shard"],
            key_table("torchtitan").names["compile"],
        ),
        together=(
            (
                key_table("torchtitan").names["local_batch"][0],
                torchtitan_keys.GLOBAL_BATCH,
                torchtitan_keys.PIPELINE_BATCH,
            ),
        ),
    ),
    "megatron": Editor(
        edit_arguments,
        (
            *key_table("megatron").rows["launcher"],
            *key_table("megatron").rows["layout"],
            *key_table("megatron").rows["serving"],
            key_table("megatron").row("expert-tensor-parallel-size"),
            key_table("megatron").row("optimizer"),
            *megatron_keys.OPTIONS,
        ),
        together=(("micro-batch-size", "global-batch-size"),),
    ),
}
