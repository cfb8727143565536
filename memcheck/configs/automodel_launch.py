"""The command that starts an AutoModel recipe: ``automodel finetune llm -c x.yaml --step_scheduler.max_steps 2``.

Options after the recipe's name replace the recipe's values (``components/config/_arg_parser.py``).
"""

from __future__ import annotations

import re

from memcheck.configs.arguments import without_comment
from memcheck.configs.automodel_keys import KEYS
from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.evidence import any_key
from memcheck.configs.key_table import key_table
from memcheck.configs.trainer_split import load_named
from memcheck.configs.types import ConfigError, Note

_COMMAND = re.compile(r"\bautomodel\b|nemo_automodel|recipes/\w+/|finetune\.py|train_ft|benchmark\.py")
_FILE = re.compile(
    r"""(?:^|\s)(?:-c|--config)[ =]["']?([^\s"']+\.ya?ml)\b|\bautomodel\s+(?:\w+\s+){0,2}([^\s"'-]\S*\.ya?ml)\b"""
)
_OWN = any_key(*KEYS.evidence[0])


def recognise(config: ConfigFile) -> str:
    """A recipe's own key, or a launch that names a recipe."""
    own = _OWN(config)
    if own or config.path.lower().endswith((".yaml", ".yml", ".json")):
        return own
    return recipe_of(config)


def recipe_of(config: ConfigFile) -> str:
    """The file that a launch names; empty for a recipe itself."""
    code = re.sub(r"\\\n", " ", "\n".join(without_comment(line)[:2000] for line in config.lines))
    for line in code.split("\n"):
        found = _FILE.search(line) if _COMMAND.search(line) else None
        if found is not None:
            return found[1] or found[2]
    return ""


def launched(config: ConfigFile) -> ConfigFile:
    """The recipe that a launch names, with what the launch says in place of its own values; any other config as it is.

    Raises:
        ConfigError: the file is not there, or is no YAML.
    """
    name = "" if config.path.lower().endswith((".yaml", ".yml", ".json")) else recipe_of(config)
    if not name:
        return config
    found = load_named(config, name, load_yaml)
    if found is None:
        raise ConfigError(f"{config.path}: there is no `{name}`, which the command names", "mend the path")
    found.inside, found.read, found.version = config.inside, config.read, config.version
    found.gpus_per_node = config.gpus_per_node
    bare = {each.key for each in config.positionals}
    for key, value in config.values.items():
        if key in bare or key in ("config", "c") or key in key_table("transformers").inside["launcher"]:
            continue
        plain = key.replace("-", "_") if key.replace("-", "_") in key_table("transformers").words["launcher"] else key
        found.adopt(plain, _scalar(value), config.at(key))
    return found


def overlooked(config: ConfigFile) -> list[Note]:
    """Overrides without dashes, which AutoModel's parser passes over (``_arg_parser.py``, parse_cli_argv)."""
    return [
        Note(each.location, f"`{each.text}`: AutoModel passes over a word without dashes; write --{each.text}")
        for each in config.positionals
        if each.key
    ]


def _scalar(value: object) -> object:
    """A word of the command line as YAML reads it (``translate_value``)."""
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "none": None, "null": None}
    if value.lower() in words:
        return words[value.lower()]
    if re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    listed = re.fullmatch(r"\[([^\[\]]*)\]", value)
    return [each.strip(" \"'") for each in listed[1].split(",") if each.strip()] if listed else value
