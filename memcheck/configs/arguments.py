"""Command lines as configs: a script, a list of arguments, or the YAML of Megatron-LM's functional tests."""

from __future__ import annotations

import re
from typing import Any

from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.finding import Location, Span
from memcheck.plan.text import split_lines

YAML_SECTION = "MODEL_ARGS"
_TOKEN = re.compile(r"""[^\s"'()#;|&<>\\]+(?:"[^"]*"|'[^']*')?|"[^"]*"|'[^']*'|[;|&<>]+""")
_OPERATORS = {";", "|", "&", "<", ">"}
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?\Z")
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)=([^\s()]*)\s*(?:#.*)?\Z")


def load_arguments(path: str, text: str, lists: frozenset[str] = frozenset()) -> ConfigFile:
    """Arguments by name, without their dashes; a switch is True. ``lists``: those that take several words.

    Raises:
        ConfigError: a YAML file that is none.
    """
    if re.search(rf"^{YAML_SECTION}\s*:", text, re.MULTILINE):
        return _from_yaml(path, text)
    return _from_text(path, text, lists)


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


def _from_text(path: str, text: str, lists: frozenset[str]) -> ConfigFile:
    lines = split_lines(text)
    values: dict[str, Any] = {}
    places: dict[str, Location] = {}
    variables: dict[str, str] = {}
    name = ""
    for number, line in enumerate(lines, 1):
        assigned = _ASSIGNMENT.match(line)
        if assigned is not None:
            variables[assigned[1]] = assigned[2].strip("\"'")
            continue
        for column, word in _words(line):
            flag = re.match(r"--([A-Za-z][\w-]*)(?:=(.*))?\Z", word)
            if flag is not None:
                name = flag[1]
                values[name] = True if flag[2] is None else _resolved(flag[2], variables)
                places[name] = Location(path, Span(number, column, number, column + len(word)))
            elif not name or word[:1] in _OPERATORS:
                name = ""
            elif values[name] is True:
                values[name] = _resolved(word, variables)
            elif name in lists:
                values[name] = f"{values[name]} {_resolved(word, variables)}"
        if not line.rstrip().endswith("\\"):
            name = ""
    return ConfigFile(path, values, lambda key: places.get(key, Location(path, Span(1, 1, 1, 1))), lines)


def _words(line: str) -> list[tuple[int, str]]:
    """Words of a shell line with their columns; what follows a ``#`` is a comment."""
    code = re.sub(r"(?:^|\s)#.*", "", line)
    return [(found.start() + 1, found[0].strip("\"'")) for found in _TOKEN.finditer(code)]


def _resolved(word: str, variables: dict[str, str]) -> str:
    """A variable that the same file sets to plain text; anything else stays as it is."""
    found = _VARIABLE.match(word)
    if found is None:
        return word
    value = variables.get(found[1], found[2] or "")
    return value if value and "$" not in value else word
