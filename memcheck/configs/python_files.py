"""Other files that a Python file names in literal paths: its own modules, and YAML or JSON that it opens.

Like every file that a config names, they lie inside its repository, or its folder where there is none.
"""

from __future__ import annotations

import os
import re
from typing import Any

from memcheck.configs.config_file import ConfigFile, load_json, load_yaml, parse_text
from memcheck.configs.python_code import PythonCode, code_of
from memcheck.configs.python_values import PythonValue, placed
from memcheck.configs.trainer_script import script_of
from memcheck.configs.trainer_split import named_files
from memcheck.configs.types import ConfigError
from memcheck.edge.opener import is_file, is_inside, real_path, repository
from memcheck.plan.text import shown_path

MOST_FILES = 40
"""Files that are looked for."""


def script_near(config: ConfigFile) -> tuple[str, str]:
    """The script that a launch line runs, and its text, where it is a Python file near the line; empty texts if not."""
    name, at = script_of(config)
    if not name.endswith(".py") or not config.lines:
        return "", ""
    before = re.search(r"[^\s\"'=]*$", config.lines[at.span.line - 1][: at.span.column - 1][-500:])
    name = (before[0] if before is not None else "") + name
    path = next((each for each in named_files(config, name) if is_file(each)), "")
    try:
        return (path, parse_text(path, config.read(path))) if path else ("", "")
    except (OSError, ConfigError):
        return "", ""


class NearFiles:
    """The files around one config."""

    def __init__(self, config: ConfigFile) -> None:
        self.sources: dict[str, tuple[str, ...]] = {}
        """The lines of every file that was read, by its path."""
        self._config = config
        self._looked = 0

    def module(self, name: str, level: int, of: str) -> PythonCode | None:
        """The code of a module, ``a/b`` for ``a.b``; None where no such file is there.

        ``level``: the dots before its name, which count from the folder of the file ``of``.
        """
        for each in (f"{name}.py", f"{name}/__init__.py", *(() if level else (f"src/{name}.py",))):
            path = self._found(each, level, of)
            text = "" if path is None else self._text(path)
            if path is not None and text:
                return code_of(path, text)
        return None

    def document(self, name: str) -> dict[Any, PythonValue] | None:
        """The values of a YAML or JSON file, each at its line; None where no such file can be read."""
        if not name.endswith((".yaml", ".yml", ".json")):
            return None
        path = self._found(name, 0, "")
        text = "" if path is None else self._text(path)
        if path is None or not text:
            return None
        try:
            config = (load_json if path.endswith(".json") else load_yaml)(path, text)
        except ConfigError:
            return None
        found: dict[Any, PythonValue] = {}
        for key, value in config.values.items():
            *sections, last = key.split(".")
            table, at = found, config.at(key)
            for each in sections:
                table = table.setdefault(each, PythonValue({}, at)).of
            table[last] = placed(value, at)
        return found

    def _found(self, name: str, level: int, of: str) -> str | None:
        self._looked += 1
        if self._looked > MOST_FILES or not name or "\0" in name or len(name) > 500:
            return None
        if not level:
            folder = os.path.dirname(self._config.path)
            plain = os.path.relpath(name, folder or ".") if name.startswith(folder + "/") and folder else name
            return next((each for each in named_files(self._config, plain) if is_file(each)), None)
        path = os.path.normpath(os.path.join(os.path.dirname(of), *[".."] * (level - 1), name))
        folder = real_path(os.path.dirname(self._config.path) or ".")
        root = self._config.inside or repository(folder)[0]
        return shown_path(path) if is_inside(real_path(path), root) and is_file(path) else None

    def _text(self, path: str) -> str:
        try:
            text = parse_text(path, self._config.read(path))
        except (OSError, ConfigError):
            return ""
        self.sources[path] = tuple(text.split("\n"))
        return text
