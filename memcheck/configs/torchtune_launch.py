"""``tune run RECIPE --config FILE key=value ...``: the config that a command names, and what it says else."""

from __future__ import annotations

import re

from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.draft import Draft
from memcheck.configs.torchtune_keys import COMPONENT, launched
from memcheck.configs.trainer_keys import LAUNCHER_IRRELEVANT
from memcheck.configs.trainer_split import load_named
from memcheck.configs.types import ConfigError, KeyRow
from memcheck.edge.libyaml import yaml
from memcheck.finding import Location, Span
from memcheck.record import Record

_RUN = re.compile(r"tune run\s+(?P<options>(?:--?[\w-]+(?:[= ]\S+)?\s+)*?)(?P<recipe>[\w./]+)\s+--config\b")
_LAUNCHER = (
    KeyRow("nnodes", "hardware.nodes"),
    KeyRow("nproc_per_node", "hardware.gpus_per_node", aliases=("nproc-per-node",)),
)
SINGLE = "_single_device"


class RecipeRun(Record):
    """A command that runs a recipe."""

    recipe: str
    location: Location
    comment: bool
    """It stands in a comment, which proves nothing."""

    @property
    def single(self) -> bool:
        """The recipe runs on one GPU alone."""
        return self.recipe.removesuffix(".py").endswith(SINGLE)


def command_of(config: ConfigFile) -> RecipeRun | None:
    """The first command of a launch line; in a config, the first that its comments name."""
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
    draft.harmless(LAUNCHER_IRRELEVANT)
    name, *overrides = str(config.take("config")).split()
    at = config.at("config")
    found = _named(draft, name)
    if found is None:
        return False
    for key, value in found.values.items():
        config.adopt(key, value, found.at(key))
    draft.sources[found.path] = found.lines
    for each in overrides:
        _override(draft, each, at)
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
    if name.endswith((".yaml", ".yml")):
        draft.refuse("config", f"there is no `{name}` beside the command, nor where it runs", "mend the path")
    else:
        message = f"`{name}` is a config that torchtune ships, and is not read from here"
        draft.refuse("config", message, f"write it to a file, and name that: tune cp {name} ./train.yaml")
    return None


def _override(draft: Draft, written: str, at: Location) -> None:
    """``key=value``, ``component=path`` or ``~key``."""
    config = draft.config
    if written.startswith("~"):
        gone = written[1:].partition("=")[0]
        for key in [each for each in config.values if each == gone or each.startswith(f"{gone}.")]:
            del config.values[key]
        return
    key, sign, text = written.partition("=")
    if not sign:
        draft.refuse("config", f"`{written}` is no override of torchtune's", "write key=value")
        return
    key = f"{key}.{COMPONENT}" if f"{key}.{COMPONENT}" in config.values else key
    config.adopt(key, _value(text), at)


def _value(text: str) -> object:
    """A value as OmegaConf reads it from a command line: YAML's; ``None`` is null."""
    if text == "None":
        return None
    try:
        found = yaml.safe_load(text) if len(text) < 1000 else text
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(found, dict) else found
