"""A launch that hands a file to its trainer, and changes keys of it: ``llamafactory-cli train x.yaml bf16=true``.

Axolotl takes options (``axolotl train x.yml --micro-batch-size 2``), LLaMA-Factory words in OmegaConf's way
(``hparams/parser.py``, read_args). nanotron's file is changed by nothing.
"""

from __future__ import annotations

import re

from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile, load_yaml, located
from memcheck.configs.draft import Draft
from memcheck.configs.evidence import Recognise
from memcheck.configs.launch_devices import devices
from memcheck.configs.launch_lines import commands_of
from memcheck.configs.shell_values import resolved
from memcheck.configs.trainer_split import load_named
from memcheck.finding import Location

_FILE = r"[\"']?(?P<file>[^\s\"';|&<>-][^\s\"';|&<>]*)"
_LAUNCHES = {
    "axolotl": re.compile(rf"\baxolotl(?:\s+train|[./]cli[./]train(?:\.py)?)\s+{_FILE}"),
    "llamafactory": re.compile(
        rf"(?:\b(?:llamafactory-cli|lmf)\s+train|\bllamafactory[./]launcher(?:\.py)?|\bsrc/train\.py)\s+{_FILE}"
    ),
    "nanotron": re.compile(rf"\brun_train\.py\s(?:.*\s)?--config[-_]file[=\s]+{_FILE}"),
}
_SUFFIXES = (".yaml", ".yml", ".json")
_WORDS = 4000
_OWN = ("launcher", "cloud", "config-file", "m", "module")
"""Options of the launch itself."""


def evidence(format: str, otherwise: Recognise) -> Recognise:
    """What proves a config to be of this format: a launch of its trainer, or else its own keys."""

    def recognise(config: ConfigFile) -> str:
        name, _ = _named(config, format) if config.launch else ("", None)
        return name or otherwise(config)

    return recognise


def _named(config: ConfigFile, format: str) -> tuple[str, Location | None]:
    """The file that a launch hands to its trainer, and where; empty where there is none."""
    for command in commands_of(config.lines):
        found = _LAUNCHES[format].search(command.text[:_WORDS])
        name = "" if found is None else resolved(found["file"], config.variables)
        if found is not None and (name.endswith(_SUFFIXES) or "$" in name):
            return name, command.at(config.path, found.start("file"), found.end("file"))
    return "", None


def join_recipe(draft: Draft) -> None:
    """Take the keys of the file that a launch hands on, where the launch does not say them.

    Any other config is left as it is.

    Raises:
        ConfigError: the file cannot be read.
    """
    config = draft.config
    name, at = _named(config, draft.format) if config.launch else ("", None)
    if at is None:
        return
    if "$" in name:
        message = f"the launch's arguments are in `{name}`, a variable that the script does not set"
        raise located(at, message, f"say which file it is: --define {name.strip('${}').partition('}')[0]}=train.yaml")
    found = load_named(config, name, load_yaml)
    if found is None:
        message = f"the launch's arguments are in `{name}`, and there is no such file in its folder, nor where it runs"
        raise located(at, message, "name that file, with --gpus-per-node and --nodes for what this one sets")
    for key in [each for each in _OWN if config.has(each)]:
        del config.values[key]
    for key in [each for each in config.values if each.replace("-", "_") != each and each not in found.values]:
        config.rename(key, key.replace("-", "_"))
    for key, value in found.values.items():
        if key not in config.values:
            config.adopt(key, value, found.at(key))
    draft.sources[found.path] = found.lines
    if draft.format != "llamafactory":  # whose reader looks at the launch itself
        parts.launcher(draft)
        devices(draft)
