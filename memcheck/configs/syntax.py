"""How a config's text is written: JSON, TOML, YAML, or the arguments of a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from memcheck.configs.arguments import YAML_SECTION, load_arguments
from memcheck.configs.config_file import ConfigFile, load_json, load_python, load_toml, load_yaml
from memcheck.configs.launch_lines import without_containers
from memcheck.configs.megatron_bridge import is_bridge
from memcheck.configs.python_code import kind_of
from memcheck.configs.serve_lines import is_dockerfile
from memcheck.configs.types import COMMAND, NO_DEFINES

JSON, TOML, YAML, ARGUMENTS, PYTHON = "json", "toml", "yaml", "arguments", "python"
_SUFFIXES = {".json": JSON, ".toml": TOML, ".yaml": YAML, ".yml": YAML, ".sh": ARGUMENTS, ".bash": ARGUMENTS}
LAUNCH = "#! the launch in this file"
"""The first line of a text that holds only the launch of a platform's file, on the line where that file has it."""
_FLAG = re.compile(r"(?:^|\s)--[A-Za-z][\w.-]*(?:[=\s]|$)", re.MULTILINE)
_TABLE = re.compile(r"^\s*\[[\w.\"'-]+\]\s*(?:#.*)?$", re.MULTILINE)


def syntax_of(path: str, text: str) -> str:
    """The syntax of a config: by its file's suffix, and for any other suffix by its text."""
    if text.startswith(LAUNCH) or path == COMMAND:
        return ARGUMENTS
    if kind_of(path, text):
        return PYTHON
    found = _SUFFIXES.get(os.path.splitext(path)[1].lower(), "")
    if found in ("", YAML) and (re.search(rf"^{YAML_SECTION}\s*:", text, re.MULTILINE) or is_bridge(text)):
        return ARGUMENTS
    if found:
        return found
    if text.lstrip().startswith("{"):
        return JSON
    if is_dockerfile(text) or text.startswith("#!") or _FLAG.search(text):
        return ARGUMENTS
    return TOML if _TABLE.search(text) else YAML


def load_config(
    path: str,
    text: str,
    syntax: str,
    lists: frozenset[str] = frozenset(),
    defines: Mapping[str, str] = NO_DEFINES,
    short: Mapping[str, str] = NO_DEFINES,
) -> ConfigFile:
    """The flat keys of a config with their places.

    ``lists``: arguments of a command line that take several words; ``defines``: variables of its caller; ``short``: the
    long names of arguments with one dash.

    Raises:
        ConfigError: the text is not of that syntax.
    """
    if syntax == JSON:
        return load_json(path, text)
    if syntax == PYTHON:
        return load_python(path, text, defines)
    if syntax == TOML:
        return load_toml(path, text)
    if syntax == ARGUMENTS:
        return load_arguments(path, without_containers(text), lists, defines, short)
    return load_yaml(path, text)
