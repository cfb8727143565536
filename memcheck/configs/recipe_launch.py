"""Launches that name a recipe, or a config of Accelerate."""

from __future__ import annotations

import re

from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile, Recognise, load_yaml, located
from memcheck.configs.draft import Draft
from memcheck.configs.launch_devices import devices
from memcheck.configs.launch_lines import by_accelerate, commands_of, starts_processes
from memcheck.configs.read_accelerate import LAUNCHED, TYPE, read_accelerate
from memcheck.configs.shell_values import resolved
from memcheck.configs.trainer_parts import Division, on, text
from memcheck.configs.trainer_script import recipe
from memcheck.configs.trainer_split import STAGE, beside, load_named, missing, refuse_unread
from memcheck.configs.types import ConfigError, ReadSetting
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.plan.finding import Location

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


RECIPES = ("config",)
ENGINES = {"use_deepspeed": "DEEPSPEED", "use_fsdp": "FSDP"}
"""Switches of ``accelerate launch`` (``commands/launch.py``), and what its config calls them."""
FILES = {"use_deepspeed": "deepspeed"}
"""The trainer's own argument for what such a switch turns on."""
MIXED = "mixed_precision"
"""What ``accelerate launch`` and its config call the dtype of the forward pass."""
PARAMETERS = "training.precision.params"
TRAINER = "training.trainer.name"
ROWS = "training.sequences"
LAUNCH_OWN = (
    "training.gradient_accumulation_steps",
    "training.activation_checkpointing",
    "training.optimizer.name",
    "training.precision",
    "training.clip_grad_norm",
)
"""What TrainingArguments say for the launcher, too."""


def join_named_recipe(draft: Draft) -> None:
    """``--config recipe.yaml``: its keys, where the command line says nothing else."""
    config = draft.config
    named, at = recipe(config)
    if named and at is not None and not any(config.has(name) for name in RECIPES):
        config.adopt(RECIPES[0], named, at)
    path = next((name for name in RECIPES if isinstance(config.values.get(name), str)), "")
    whole = config.path.endswith((".yaml", ".yml", ".json")) and config.has("learning_rate")
    if not path or whole:  # a config that is no launch, with a key of that name
        return
    found = _file(draft, path)
    if found is None:
        return
    for key, value in found.values.items():
        if key not in config.values:
            config.adopt(key, value, found.at(key))
    draft.sources[found.path] = found.lines


def join_launch(draft: Draft, world: int | None) -> Division | None:
    """What ``accelerate launch`` says in ``--config_file fsdp.yaml`` or its own arguments: how the job is split."""
    named = bool(text(draft, "config_file"))
    found = _file(draft, "config_file") if named else _in_arguments(draft)
    if found is None:
        return Division() if named else None
    found.gpus_per_node, found.inside, found.read = draft.config.gpus_per_node, draft.config.inside, draft.config.read
    said = found.values.get(MIXED)
    if isinstance(said, str) and not draft.config.has(MIXED):
        draft.config.adopt(MIXED, said, found.at(MIXED))  # what TrainingArguments leaves as it is (training_args.py)
    reading = read_accelerate(found, world)
    for key, setting in reading.settings.items():
        if setting.assumed and not key.startswith(("hardware.", "parallelism.")):
            continue
        if key.startswith(LAUNCH_OWN) and not (key.endswith(".mode") and not setting.assumed):
            continue
        if key not in draft.settings or draft.settings[key].location is None:
            draft.settings[key] = setting
    draft.notes += reading.notes
    draft.problems += beside(reading.problems, LAUNCH_OWN)
    draft.sources.update(reading.sources)
    engine = str(found.values.get("distributed_type")).upper() == "DEEPSPEED"
    return Division(engine=engine, sharded=draft.value(STAGE) == 3 and not engine)


def _in_arguments(draft: Draft) -> ConfigFile | None:
    """Arguments of ``accelerate launch`` under the names that they have in its config; None where it only starts
    processes.
    """
    config = draft.config
    followed = {
        name for name in ENGINES if str(config.values.get(name, "")).endswith(".py")
    }  # a switch, and the script
    switch, kind = next((each for each in ENGINES.items() if each[0] in followed or on(draft, each[0])), ("", ""))
    if not kind or isinstance(config.values.get(FILES.get(switch, "")), str):
        return None  # a file that the trainer names goes before the launcher's (training_args.py, __post_init__)
    if starts_processes(config) and not by_accelerate(config):
        message = f"`{switch}`: the switch is the script's own, and how it splits the job is not known"
        draft.refuse(switch, message, f"state it: --set {STAGE}=3", (STAGE,))
        return None
    section = f"{kind.lower()}_config."
    known = (row.removeprefix(section) for row in LAUNCHED if row.startswith(section))
    names = {f"{section}{name}": name for name in known if config.has(name)}
    config.see(*names.values())
    values = {key: _plain(config.values[name]) for key, name in names.items()} | {TYPE: kind}
    return ConfigFile(config.path, values, lambda key: config.at(names.get(key, f"use_{kind.lower()}")), config.lines)


def _plain(written: object) -> object:
    return {"true": True, "false": False}.get(str(written).lower(), written)


def _file(draft: Draft, path: str) -> ConfigFile | None:
    config = draft.config
    name = str(config.values[path])
    config.see(path)
    if name.startswith("$"):
        refuse_unread(draft, path, name)
        return None
    try:
        found = load_named(config, name, load_yaml)
    except ConfigError as error:
        draft.refuse(path, error.message, "mend the file")
        return None
    if found is not None:
        return found
    draft.refuse(path, missing(draft.config, name), "copy the file into the config's folder, or mend the path")
    return None


def reconciled(found: dict[str, ReadSetting], formats: tuple[str, ...]) -> list[str]:
    """Keys that a recipe and its launcher leave out together: what is trained is upcast before FSDP shards it, and
    DeepSpeed casts the model itself.
    """
    if "accelerate" not in formats:
        return []
    framework, trainer = found.get("training.framework"), found.get("training.trainer.name")
    gone = []
    if framework is not None and trainer is not None:
        gone += [TRAINER] if trainer.value not in FRAMEWORKS[str(framework.value)].trainers else []
    rows = found.get(ROWS)
    pads = framework is None or FRAMEWORKS[str(framework.value)].runs_transformers
    if not pads and rows is not None and rows.assumed:
        found[ROWS] = rows._replace(value="unpacked") if rows.value == "padded" else rows
    if PARAMETERS not in found:
        return gone
    stage, method = found.get(STAGE), found.get("training.method")
    engine = framework is not None and FRAMEWORKS[str(framework.value)].data_parallel == "zero"
    sharded = stage is not None and stage.value in (1, 2, 3)
    trains_all = method is None or method.value == "full"
    return [*gone, PARAMETERS] if engine or (sharded and trains_all) else gone
