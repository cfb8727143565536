"""Command lines as configs: a script, a list of arguments, or the YAML of Megatron-LM's functional tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.finding import Location, Span
from memcheck.plan.text import split_lines

YAML_SECTION = "MODEL_ARGS"
_TOKEN = re.compile(r"""[^\s"'()#;|&<>\\]+(?:"[^"]*"|'[^']*')?|"[^"]*"|'[^']*'|[;|&<>]+""")
_OPERATORS = {";", "|", "&", "<", ">"}
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*|\d+)(?::?-([^}]*))?\}?\Z")
_OPENS = re.compile(r"(?:^|;|\bthen\b|\bdo\b|\belse\b)\s*(?:if|case)\b")
_CLOSES = re.compile(r"(?:^|[;\s])(?:fi|esac)\b")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s()]*)\s*(?:#.*)?\Z")


NO_DEFINES: Mapping[str, str] = {}


def load_arguments(
    path: str, text: str, lists: frozenset[str] = frozenset(), defines: Mapping[str, str] = NO_DEFINES
) -> ConfigFile:
    """Arguments by name, without their dashes; a switch is True.

    ``lists``: those that take several words. ``defines``: variables that the script leaves to its caller.

    Raises:
        ConfigError: a YAML file that is none.
    """
    if re.search(rf"^{YAML_SECTION}\s*:", text, re.MULTILINE):
        return _from_yaml(path, text)
    return _from_text(path, text, lists, defines)


def _from_yaml(path: str, text: str) -> ConfigFile:
    """``MODEL_ARGS: {--num-layers: 12, ...}``. The other sections are the test harness's."""
    whole = load_yaml(path, text)
    values: dict[str, object] = {}
    keys: dict[str, str] = {}
    for key, value in whole.values.items():
        section, _, name = key.partition(".")
        if section == YAML_SECTION and name.startswith("--") and value is not False:
            values[name[2:]] = value
            keys[name[2:]] = key
    return ConfigFile(path, values, lambda name: whole.at(keys.get(name, "")), whole.lines)


def _from_text(path: str, text: str, lists: frozenset[str], defines: Mapping[str, str]) -> ConfigFile:
    lines = split_lines(text)
    values: dict[str, Any] = {}
    places: dict[str, Location] = {}
    variables: dict[str, str] = dict(defines)
    branches: set[str] = set()
    hanging: dict[str, str] = {}
    depth = 0
    name = ""
    for number, line in enumerate(lines, 1):
        depth = max(0, depth + len(_OPENS.findall(_code(line))) - len(_CLOSES.findall(_code(line))))
        assigned = _ASSIGNMENT.match(line)
        if assigned is not None:
            if assigned[1] in defines:
                variables[assigned[1]] = defines[assigned[1]]
                continue
            if depth:
                branches.add(assigned[1])
            variables[assigned[1]] = _resolved(assigned[2].strip("\"'"), variables)
            continue
        for column, word in _words(line):
            flag = re.match(r"--([A-Za-z][\w.-]*)(?:=(.*))?\Z", word)
            if flag is not None:
                name = flag[1]
                values[name] = True if flag[2] is None else _resolved(flag[2], variables)
                hanging.pop(name, None)
                if depth or (flag[2] is not None and _name_of(flag[2]) in branches):
                    hanging[name] = _name_of(flag[2] or "")
                places[name] = Location(path, Span(number, column, number, column + len(word)))
            elif not name or word[:1] in _OPERATORS:
                name = ""
            elif values[name] is True:
                values[name] = _resolved(word, variables)
                if _name_of(word) in branches:
                    hanging[name] = _name_of(word)
            elif name in lists:
                values[name] = f"{values[name]} {_resolved(word, variables)}"
        if not line.rstrip().endswith("\\"):
            name = ""
    found = ConfigFile(path, values, lambda key: places.get(key, Location(path, Span(1, 1, 1, 1))), lines)
    found.hanging = hanging
    return found


def _words(line: str) -> list[tuple[int, str]]:
    """Words of a shell line with their columns; what follows a ``#`` is a comment."""
    return [(found.start() + 1, found[0].strip("\"'")) for found in _TOKEN.finditer(_code(line))]


def _code(line: str) -> str:
    return re.sub(r"(?:^|\s)#.*", "", line)


def _name_of(word: str) -> str:
    """The variable that a word is; empty for plain text."""
    found = _VARIABLE.match(word.strip("\"'"))
    return "" if found is None else found[1]


def _resolved(word: str, variables: dict[str, str]) -> str:
    """A variable that the same file sets to plain text; anything else stays as it is."""
    found = _VARIABLE.match(word)
    if found is None:
        return word
    value = variables.get(found[1], found[2] or "")
    return value if value and "$" not in value else word
