"""A launch of torchtune: the recipe's file, the keys that it changes, and how keys refer to others."""

from __future__ import annotations

import os
import re
from functools import lru_cache

from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_lines import commands_of
from memcheck.configs.shell_documents import Positional
from memcheck.configs.torchtune_parts import COMPONENT, launched
from memcheck.configs.trainer_split import load_named
from memcheck.configs.types import ConfigError, ConfigProblem, KeyRow, Note
from memcheck.edge.libyaml import yaml
from memcheck.edge.own_json import read_own_json
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

_RUN = re.compile(r"tune run\s+(?:--?[\w-]+(?:=\S+|\s+(?!-)\S+)?\s+)*?(?P<recipe>[\w./]+)(?=\s)")
_VARIABLE = re.compile(r"\$\{(\w+)[^}]*\}")
"""A variable of the shell, which is no reference to a key of the config."""
_LAUNCHER = (
    KeyRow("nnodes", "hardware.nodes"),
    KeyRow("nproc_per_node", "hardware.gpus_per_node", aliases=("nproc-per-node",)),
)
SINGLE = "_single_device"
PROGRAM, STARTS = "tune", ("run",)
"""The program, and its word before the recipe's name."""


class RecipeRun(Record):
    """A command that runs a recipe."""

    recipe: str
    location: Location
    comment: bool
    """Whether the command is in a comment. A command in a comment does not prove that the recipe is used."""

    @property
    def single(self) -> bool:
        """The recipe runs on one GPU alone."""
        return self.recipe.removesuffix(".py").endswith(SINGLE)


def command_of(config: ConfigFile) -> RecipeRun | None:
    """The first command of a launch line; in a config, the first that its comments name."""
    for command in commands_of(config.lines) if config.launch else ():
        found = _RUN.search(command.text[:2000])
        if found is not None:
            return RecipeRun(found["recipe"], command.at(config.path, *found.span("recipe")), comment=False)
    for number, line in enumerate(config.lines, 1):
        found = _RUN.search(line[:2000])
        if found is not None:
            at = Location(config.path, Span(number, found.start("recipe") + 1, number, found.end("recipe") + 1))
            return RecipeRun(found["recipe"], at, line.lstrip().startswith("#"))
    return None


def join_launch(draft: Draft) -> bool:
    """Take the keys of the config that a command names, and its overrides; False where there is none to take."""
    config = draft.config
    if not launched(config):
        return True
    draft.rows(_LAUNCHER)
    draft.harmless(key_table("transformers").inside["launcher"])
    words = [each for each in config.positionals if each.program == PROGRAM]
    recipe = next((number for number, each in enumerate(words) if each.text not in STARTS), len(words))
    overrides = {each.key for each in words if each.key}
    found = _named(draft, str(config.take("config")))
    if found is None:
        return False
    said = {key: (config.values[key], config.at(key)) for key in overrides if key in config.values}
    for key in said:
        del config.values[key]
    for key, value in found.values.items():
        config.adopt(key, value, found.at(key))
    draft.sources[found.path] = found.lines
    for each in words[recipe + 1 :]:
        if each.key in said:
            _override(draft, each.key, *said.pop(each.key))
        elif not each.key:
            _remove(draft, each)
    return True


def _named(draft: Draft, name: str) -> ConfigFile | None:
    config = draft.config
    try:
        found = load_named(config, name, load_yaml)
    except ConfigError as error:
        draft.refuse("config", error.message, "mend the file")
        return None
    if found is not None:
        return found
    shipped = _shipped().get(name) if name else None
    if shipped is not None:
        values = {key: value for key, value in {**_shipped()[""], **shipped}.items() if value is not None}
        at = config.at("config")
        draft.notes.append(Note(at, f"`{name}` is read as torchtune ships it at bd2a0fc7c (April 2026)", counted=True))
        return ConfigFile(config.path, values, lambda _: at, config.lines)
    if name.endswith((".yaml", ".yml")):
        draft.refuse("config", f"there is no `{name}` in the command's folder, nor where it runs", "mend the path")
    else:
        message = f"memcheck knows no config `{name}` of torchtune's"
        draft.refuse("config", message, f"write it to a file, and name that: tune cp {name} ./train.yaml")
    return None


SHIPPED = os.path.join(os.path.dirname(__file__), "torchtune_recipes.json")
"""The keys that bear on memory of each config that torchtune ships, by its name; under the empty name what most have,
of which null is what one has not (``benchmarks/torchtune_recipes.py``).
"""


@lru_cache(maxsize=1)
def _shipped() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = read_own_json(SHIPPED)
    return found


def _remove(draft: Draft, word: Positional) -> None:
    """``~key``. A word of any other form is an error of torchtune's own, but for what the script's caller adds."""
    config = draft.config
    if word.text.startswith("~"):
        gone = word.text[1:].partition("=")[0]
        for key in [each for each in config.values if each == gone or each.startswith(f"{gone}.")]:
            del config.values[key]
    elif "$" in word.text:
        message = f"`{word.text}`: the script does not set it, and overrides in it are not read"
        draft.notes.append(Note(word.location, message))
    else:
        message = f"`{word.text}` is no override of torchtune's"
        draft.problems.append(ConfigProblem(word.location, message, "write key=value"))


def _override(draft: Draft, key: str, text: object, at: Location) -> None:
    """``key=value``, or ``component=path``."""
    config = draft.config
    key = f"{key}.{COMPONENT}" if f"{key}.{COMPONENT}" in config.values else key
    config.adopt(key, _value(_VARIABLE.sub(r"$\1", str(text))), at)


def _value(text: str) -> object:
    """A value as OmegaConf reads it from a command line: YAML's; ``None`` is null."""
    if text == "None":
        return None
    try:
        found = yaml.safe_load(text) if len(text) < 1000 else text
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(found, dict) else found


_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
DEPTH = 16
"""References that lead to references; what goes on for longer goes in a circle."""
LONGEST = 10_000
"""The most characters that a value may have after its references are replaced."""


def interpolate(config: ConfigFile) -> dict[str, str]:
    """Put values in place of references to them. Returns what is left: key to the reference that nothing answers."""
    left: dict[str, str] = {}
    for key in list(config.values):
        _settle(config, key, left, DEPTH)
    return left


def _settle(config: ConfigFile, key: str, left: dict[str, str], depth: int) -> None:
    """Answer the references of one value, once."""
    value = config.values[key]
    if key in left or not isinstance(value, str) or "${" not in value:
        return
    found, missing = _resolved(config, key, value, left, depth) if depth else (value, value[:100])
    config.values[key] = found
    if missing:
        left[key] = missing


def _resolved(config: ConfigFile, key: str, value: str, left: dict[str, str], depth: int) -> tuple[object, str]:
    """A value with its references answered, and the first that cannot be."""
    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        return _answer(config, key, whole, left, depth)
    text, place = "", 0
    for found in _REFERENCE.finditer(value[:LONGEST]):
        answer, missing = _answer(config, key, found, left, depth)
        if missing or len(text) > LONGEST:
            return value, missing or value[:100]
        text += f"{value[place : found.start()]}{answer}"
        place = found.end()
    result = text + value[place:]
    return (result, "") if "${" not in result else (value, value[:100])


def _answer(config: ConfigFile, key: str, found: re.Match[str], left: dict[str, str], depth: int) -> tuple[object, str]:
    name = _absolute(key, found[1].strip())
    if ":" in name or name not in config.values or isinstance(config.values[name], (dict, list)):
        return found[0], found[0]
    _settle(config, name, left, depth - 1)
    return (found[0], left[name]) if name in left else (config.values[name], "")


def _absolute(key: str, name: str) -> str:
    """The absolute key for a relative ``name``. ``.name`` is in the section of ``key``, ``..name`` in the section
    above.
    """
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    parents = key.split(".")[:-dots]
    return ".".join([*parents, name[dots:]])
