"""What the launch line of a Python file says: its options, processes, and how ``accelerate launch`` splits the job."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from memcheck.configs import trainer_arguments as arguments
from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_devices import devices
from memcheck.configs.launch_lines import by_accelerate
from memcheck.configs.python_job import PythonJob
from memcheck.configs.python_loop import LOOP
from memcheck.configs.recipe_launch import ENGINES, MIXED, join_launch
from memcheck.configs.trainer_parts import Division
from memcheck.configs.trainer_script import script_of
from memcheck.configs.trainer_split import STAGE
from memcheck.configs.types import ConfigProblem, ReadConfig
from memcheck.record import Record

KEYS = key_table("python")
NAME, SAVED, EVALUATES = "model.name", "training.checkpoint.state_dict", "training.evaluation"
STOPS = "has no such option, and its parser stops there"
MOST_SHOWN = 5
"""Options that a launch line shows."""
OF_ACCELERATE = frozenset({"config_file", MIXED, *ENGINES})
"""Options of ``accelerate launch`` that say how it splits or casts the job."""


class Started(Record):
    """What the launch line of a script says besides the script's own options."""

    said: Draft
    """The GPUs that it starts, with what ``accelerate launch`` says in its arguments or its config."""
    split: Division | None
    """How Accelerate splits the job; None where the line does not say it."""


def read_launch(config: ConfigFile, world: int | None, taken: Iterable[str]) -> Started:
    """Read the launcher's part of a launch line. ``taken``: the options of the script, which stand after its name."""
    script = script_of(config)[1].span
    for name in taken:
        if name in OF_ACCELERATE and config.has(name) and config.at(name).span[:2] > script[:2]:
            del config.values[name]
    said = Draft(config, "python", KEYS.title)
    parts.launcher(said)
    split = join_launch(said, world) if by_accelerate(config) else None
    devices(said)
    return Started(said=said, split=split)


def join_started(draft: Draft, started: Started) -> None:
    """Take what a launch line says into the draft of its script."""
    said = started.said
    draft.settings.update(said.settings)
    draft.problems += said.problems
    draft.notes += said.notes
    draft.sources.update(said.sources)
    if by_accelerate(said.config) and said.config.has(MIXED):
        draft.config.adopt(MIXED, said.config.values[MIXED], said.config.at(MIXED))


def divided(draft: Draft, job: PythonJob, world: int | None, launched: Division | None) -> Division:
    """How the job is split: by what its launcher says, or else by its own arguments."""
    if launched is None or not (launched.engine or launched.sharded):
        return arguments.split(draft, world) if launched is None or is_split(draft) else launched
    if job.trainer == LOOP and not job.prepared:
        message = "the launcher splits the job, and whether this loop heeds it is not known"
        draft.problems.append(ConfigProblem(job.at, message, KEYS.words["answers"][STAGE], keys=(STAGE,)))
    elif is_split(draft):
        message = "the launcher and the arguments of the trainer both split the job"
        draft.problems.append(ConfigProblem(job.at, message, KEYS.words["answers"][STAGE], keys=(STAGE,)))
    return launched


def is_split(draft: Draft) -> bool:
    """Whether the arguments of the trainer split the job."""
    return any(draft.config.has(name) or draft.config.section(name) for name in ("deepspeed", "fsdp", "fsdp_config"))


def stops(reading: ReadConfig) -> bool:
    """Whether a launch line starts nothing: a script that reads options refuses one that it lacks."""
    return any(STOPS in each.message for each in reading.problems)


def compared(reading: ReadConfig) -> tuple[tuple[str, str], ...]:
    """The settings of a job that tell it from another: of a model its name, in whatever folder it lies.

    What is saved, and whether there is an evaluation between steps, tells no job from another.
    """
    said = {key: str(each.value) for key, each in reading.settings.items() if not key.startswith((SAVED, EVALUATES))}
    return tuple(sorted({**said, NAME: said.get(NAME, "").rpartition("/")[2]}.items()))


def evaluated(reading: ReadConfig | None) -> tuple[int, int, bool]:
    """How much a job adds to its steps: sequences of an evaluation, and their length; what is saved comes last."""
    found = {} if reading is None else reading.settings
    said = [
        found[key].value if key in found else 0
        for key in (f"{EVALUATES}.micro_batch_size", f"{EVALUATES}.sequence_length")
    ]
    sizes = [each if isinstance(each, int) else 0 for each in said]
    return sizes[0], sizes[1], SAVED not in found


def options_of(config: ConfigFile) -> dict[str, str]:
    """The arguments of a launch line by the names of the script's options."""
    return {key.replace("-", "_"): str(value) for key, value in config.values.items() if not isinstance(value, list)}


def words_of(config: ConfigFile, path: str) -> tuple[str, ...]:
    """The words of a launch line that its script gets, and that are no options."""
    script = path.rpartition("/")[2]
    return tuple(each.text for each in config.positionals if each.program == script and not each.key)


def launch_line(config: ConfigFile, job: PythonJob, needed: str) -> str:
    """The command that answers what the file leaves to its command line, with its own options.

    ``needed``: an option without a default; empty where there is none.
    """
    model = job.values.get("model_name_or_path")
    asked = [each.option.partition(" ")[0] for each in job.values.values() if each.option and not each.known]
    named = "" if model is None else model.option.partition(" ")[0]
    words = [
        f"{each} {'llama-3.1-8b' if each == named else 'VALUE'}"
        for each in dict.fromkeys((named, *asked, needed))
        if each.startswith("--") and each != "--"
    ]
    line = f"{shlex.quote(config.path)} {' '.join(words[:MOST_SHOWN]) or '--OPTION VALUE'}"
    return f"give the launch line: memcheck check --gpu {config.gpu or 'a100-80gb'} -- python {line}"
