"""What a launch line says in addition to its arguments: the script that it runs, and how arguments are spelled."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile, load_json
from memcheck.configs.launch_lines import commands_of
from memcheck.configs.shell_values import resolved
from memcheck.configs.trainer_keys import KEYS
from memcheck.configs.types import ConfigError
from memcheck.finding import Location
from memcheck.remembered import lru_cache

_SCRIPT = re.compile(r"(?:^|[\s/\"'])(?:run[_-])?([\w.-]*?\w)(?:[_-](?:training|trainer|finetune|llm))?\.py\b")
_MODULE = re.compile(
    r"(?:^|\s)(?:-m|--module)[\s=]+(?!torch\.|accelerate\.|deepspeed\.|axolotl\.)(?:\w+\.)*(\w+)(?=\s|$)"
)
_RECIPE = re.compile(r"(?:[\w-]\.py|\btrl\s+[a-z_]+)[\"']?\s+[\"']?((?:[\w./~-]|\$\w+(?!\w)|\$\{\w+\})+)[\"']?(?=\s|$)")
_CALLED_RECIPE = re.compile(r"\$\{?\w*(?:conf|recipe|yaml|yml)\w*\}?\Z", re.IGNORECASE)
_MODELS = (
    *("model_name", "model-name", "model_id", "model-id", "pretrained_model_name_or_path", "base_model"),
    *("base-model", "model_path", "model-path"),
)
"""Arguments by which scripts of one's own name their model."""
_SUFFIXES = (".yaml", ".yml")
_OVERRIDE = re.compile(r"(?:^|\s)\+{0,2}((?:grpo|policy|dpo|sft|rm|distillation|cluster)\.[\w.]+)=(?!=)")
_ABBREVIATED = {"rm": "reward", "rewards": "reward"}
_JOINED = frozenset({"train", "trainer", "training", "run", "my", "main", "do", "llm", "vlm", "hf", "trl", "ft"})
"""Text before or after an objective in a script's name, without a hyphen between them: ``traindpo.py``."""
_COMMAND = re.compile(r"\b(?:trl|swift|llamafactory-cli)\s+([a-z_]+)")


def spelled_with_underscores(config: ConfigFile) -> None:
    """``--per-device-train-batch-size`` is the same argument as ``--per_device_train_batch_size``."""
    for name in [each for each in config.values if "-" in each and "." not in each]:
        plain = name.replace("-", "_")
        if plain not in config.values:
            config.rename(name, plain)
    for name in [each for each in config.values if each.startswith("no_")]:
        _turned_off(config, name)
    for name, written in list(config.values.items()):
        if isinstance(written, str) and written.startswith("{") and written.endswith("}"):
            _spread(config, name, written)


def _turned_off(config: ConfigFile, name: str) -> None:
    """``--no_gradient_checkpointing``: the parser's own switch of a field that is true by default."""
    plain = name.removeprefix("no_")
    fields = KEYS.as_set("training_arguments", "trl")
    if name not in fields and plain in fields and plain not in config.values and config.values[name] is True:
        config.rename(name, plain)
        config.values[plain] = False


def _spread(config: ConfigFile, name: str, written: str) -> None:
    """An argument that is a JSON object: its keys, as the same mapping in YAML has them."""
    try:
        below = load_json(config.path, written).values
    except ConfigError:
        return
    at = config.at(name)
    for key, value in below.items():
        config.adopt(f"{name}.{key}", value, at)
    if below:
        del config.values[name]


def commands(config: ConfigFile) -> list[str]:
    """The names of scripts and subcommands on the lines of a launch."""
    return list(_commands(config.lines))


@lru_cache(maxsize=4)
def _commands(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Readers ask for them several times for one script."""
    found = []
    for line in lines:
        code = without_comment(line)[:2000]
        found += _COMMAND.findall(code) + _SCRIPT.findall(code) + _MODULE.findall(code)
    return tuple(each.lower().replace("-", "_") for each in found)


def otherwise_named(config: ConfigFile) -> str:
    """The argument by which a script of one's own names its model; empty where it has the Trainer's examples' name."""
    if config.has("model_name_or_path"):
        return ""
    return next((name for name in _MODELS if config.has(name)), "")


def overridden(lines: Iterable[str]) -> tuple[int, re.Match[str]] | None:
    """The line, and on it the first key of a config that a launch sets in Hydra's way: ``grpo.max_num_steps=10``."""
    for number, line in enumerate(lines, 1):
        found = _OVERRIDE.search(without_comment(line)[:2000])
        if found is not None:
            return number, found
    return None


def recipe(config: ConfigFile) -> tuple[str, Location | None]:
    """The recipe that a launch line hands to its script as the first argument (``run_sft.py recipe.yaml``), and where.

    Empty where there is none, or several lines name different ones.
    """
    found: dict[str, Location] = {}
    for command in commands_of(config.lines):
        for named in _RECIPE.finditer(command.text):
            file = resolved(named[1], config.variables)
            held = config.variables.get(file.strip("${}"), "")
            if file.endswith(_SUFFIXES) or held.endswith(_SUFFIXES) or (not held and _CALLED_RECIPE.match(file)):
                found.setdefault(file, command.at(config.path, named.start(1), named.end(1)))
    return next(iter(found.items())) if len(found) == 1 else ("", None)


def runs(config: ConfigFile, package: str) -> bool:
    """Whether a line of a launch names a script in this folder, or a module of this package."""
    named = re.compile(rf"(?:^|[\s/]){package}[/.]")
    return any(named.search(without_comment(line)[:2000]) for line in config.lines)


def objectives_named(config: ConfigFile, kinds: Iterable[str]) -> list[str]:
    """The objectives that the names of scripts and commands hold, each once: ``dpo`` of ``train_dpo.py``.

    A word of a name counts, and what a word starts or ends with: ``my-grpo-run.py``, ``traindpo.py``, ``train_rm.py``.
    """
    known = tuple(kinds)
    return list(dict.fromkeys(kind for name in commands(config) for kind in _objectives_of(name, known)))


def _objectives_of(name: str, known: tuple[str, ...]) -> list[str]:
    spaced = f"_{'_'.join(re.findall('[a-z]+', name))}_"
    long = next((kind for kind in known if "_" in kind and f"_{kind}_" in spaced), "")
    if long:  # `online_dpo` is no `dpo`
        return [long]
    words = [_ABBREVIATED.get(word, word) for word in spaced.strip("_").split("_")]
    exact = [word for word in words if word in known]
    return exact or [kind for word in words for kind in known if _is_joined(word, kind)][:1]


def _is_joined(word: str, kind: str) -> bool:
    return word not in _JOINED and not _JOINED.isdisjoint((word.removeprefix(kind), word.removesuffix(kind)))


def kind_of(config: ConfigFile, kinds: Iterable[str], preference: Iterable[str]) -> tuple[str, str]:
    """What is optimized, and the key that says so.

    A script's or a command's name decides; in a file without one, a key that only objectives over preferences have
    does, and which of them it is, the names of its folder and file, or these names alone. Without such keys, of scripts
    whose keys mean what they like, only the first counts.
    """
    known, keys = tuple(kinds), tuple(preference)
    found = objectives_named(config, known)
    if found:
        return found[0], ""
    if not keys:
        return "sft", ""
    key = next((name for name in keys if config.has(name)), "")
    if not key:
        named = _folders(config, 2)
        return ("sft" if "sft" in named else next((name for name in known if name in named), "sft")), ""
    parts = [*re.split(r"[^a-z0-9]+", config.path.lower()), *_folders(config, 3)]
    return next((name for name in known if name in parts and name != "sft"), "dpo"), key


def _folders(config: ConfigFile, count: int) -> list[str]:
    """Words of the last parts of a path, wherever the command runs."""
    whole = os.path.abspath(config.path).lower().replace("\\", "/")
    return re.split(r"[^a-z0-9]+", "/".join(whole.split("/")[-count:]))
