"""``litgpt finetune_lora CHECKPOINT --config FILE --train.micro_batch_size 4``: which script runs, and on what."""

from __future__ import annotations

import re

from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile, load_yaml
from memcheck.configs.draft import Draft
from memcheck.configs.swift_commands import without_others
from memcheck.configs.trainer_split import load_named
from memcheck.configs.types import ConfigError
from memcheck.finding import Location, Span
from memcheck.record import Record

_TRAINS = re.compile(
    r"(?:^|[\s;&/])litgpt\s+(?P<script>finetune(?:[_ ](?:lora_legacy|lora|full|adapter_v2|adapter))?|pretrain)"
    r"(?=\s|$)(?:\s+(?P<model>[^\s\\;&|-][^\s\\;&|]*))?"
)
_OTHER = re.compile(
    r"(?:^|[\s;&/])litgpt\s+(?:download|chat|generate\w*|convert\w*|merge_lora|evaluate|serve|validate)(?=\s|$)"
)


class ScriptRun(Record):
    """A command that trains."""

    script: str
    """``full`` | ``lora`` | ``adapter`` | ``adapter_v2`` | ``pretrain``."""
    model: str
    """The checkpoint or the model's name, where it is the command's first word."""
    location: Location


def runs_of(config: ConfigFile) -> list[ScriptRun]:
    """Every command of a launch script that trains; none of a config, whose comments may name some."""
    if config.path.lower().endswith((".yaml", ".yml", ".json", ".toml")):
        return []
    found = []
    for number, line in enumerate(config.lines, 1):
        code = without_comment(line)[:2000]
        for each in _TRAINS.finditer(_continued(config.lines, number, code)):
            if each.start("script") >= len(code):
                continue
            words = re.split(r"[_ ]", each["script"], maxsplit=1)
            script = "pretrain" if words[0] == "pretrain" else words[1] if words[1:] else "lora"
            at = Location(config.path, Span(number, each.start("script") + 1, number, each.end("script") + 1))
            found.append(ScriptRun(script, (each["model"] or "").strip("\"'"), at))
    return found


def run_of(config: ConfigFile) -> ScriptRun | None:
    """The first run of a LitGPT script that a config starts; None where it starts none."""
    return next(iter(runs_of(config)), None)


def training_alone(text: str) -> str:
    """The script without LitGPT's commands that train nothing."""
    return without_others(text, _TRAINS, _OTHER)


def join_run(draft: Draft, model: str, other: str) -> ScriptRun | None:
    """Take what the command says in addition to its arguments: the model, and the config that ``--config`` names.

    ``model``, ``other``: the keys of the model of a script that fine-tunes, and of the one that pretrains.
    """
    config = draft.config
    found = runs_of(config)
    if not found:
        return None
    run = found[0]
    config.see("config")
    if len(found) > 1:
        at = found[1].location
        config.adopt("config", str(config.values.get("config", "")), at)
        draft.refuse("config", "the script trains more than once, and its arguments are one job's", "one for each")
        return run
    named = config.values.get("config")
    recipe = _recipe(draft, str(named)) if isinstance(named, str) else None
    for key, value in recipe.values.items() if recipe is not None else ():
        if key not in config.values:
            config.adopt(key, value, recipe.at(key) if recipe is not None else run.location)
    if recipe is not None:
        draft.sources[recipe.path] = recipe.lines
    if run.model:
        config.adopt(other if run.script == "pretrain" else model, run.model, run.location)
    return run


def _recipe(draft: Draft, name: str) -> ConfigFile | None:
    try:
        found = load_named(draft.config, name, load_yaml)
    except ConfigError as error:
        draft.refuse("config", error.message, "mend the file")
        return None
    if found is None:
        message = f"there is no `{name}` in the command's folder, nor where it runs"
        draft.refuse("config", message, "write it to a file, and name that")
    return found


def _continued(lines: tuple[str, ...], number: int, code: str) -> str:
    """A line with the next one, where it goes on there."""
    if code.rstrip().endswith("\\") and number < len(lines):
        return f"{code.rstrip()[:-1]} {lines[number][:2000].lstrip()}"
    return code
