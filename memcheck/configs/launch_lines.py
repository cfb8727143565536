"""The commands of a script: which one trains, and what others, installers and containers among them, leave out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from memcheck.configs.arguments import load_arguments, without_comment
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.types import ConfigProblem
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

_STARTS = re.compile(r"\b(?:torchrun|deepspeed|sbatch|accelerate\s+launch|torch\.distributed\.(?:run|launch))\s")
_ACCELERATE = re.compile(r"\baccelerate\s+launch\b|\baccelerate\.commands\.launch\b")
_SCRIPTED = re.compile(
    r"(?:^|[\s;&])(?:sbatch|bash|sh|qsub)\s(?:[^|;&]*?\s)??(\S+\.(?:sh|slurm|sbatch|job|pbs))(?=\s|$)"
)
_PYTHON = re.compile(r"\.py\b|\s-m\s|\s--module\b")
_STATES = re.compile(
    r"\s--(?:[\w.]+\.)?(?:per[_-]device[_-]train[_-]batch[_-]size|learning[_-]rate|num[_-]train[_-]epochs)\b"
)
_RECIPE = re.compile(r"(?:\.py|\b(?:train|sft|pt|rlhf))\s+([\w./~-]+\.ya?ml)(?=\s|$)|\s--config[\s=]+(\S+\.ya?ml)\b")
_PROGRAM = re.compile(
    r"(?:^|[\s;&])(?:python[\d.]*|torchrun|deepspeed|accelerate\s+launch|swift|megatron|llamafactory-cli|trl|sbatch|bash)\s"
)
_RUNS = re.compile(r"(?:^|[\s;&])(?:python[\d.]*|torchrun|deepspeed|accelerate\s+launch)\s")
_HANDS_ON = re.compile(
    r"\$[@*]|\[[@*]\]|\$\{?\w*(?:args|opts|options|flags|params|cmd|command)\w*|(?:^|\s)(?!--)[^\s-]\S*\s+[\"']?\$",
    re.IGNORECASE,
)
"""Arguments that stand elsewhere: of the script's caller, of an array, of a variable that is no argument's value."""
_VALUES = re.compile(r"--[A-Za-z][\w.-]*[=\s]+(?:\"\$[^\"\s]*\"|\$\S+)")
"""Arguments whose value is a variable."""
_NAMED = 10
"""Lines that a message names."""
_WORDS, _WHOLE = 4000, 40_000
"""How much of a line, and of a command, is looked at."""


class Command(Record):
    """One command without its comments."""

    text: str
    lines: tuple[tuple[int, int], ...]
    """Where each line of the script starts in the text, and its number."""

    def at(self, path: str, start: int, end: int) -> Location:
        """The place of a part of the text, which is on one line."""
        begin, number = max(each for each in self.lines if each[0] <= start)
        return Location(path, Span(number, start - begin + 1, number, end - begin + 1))


def commands_of(lines: Iterable[str]) -> tuple[Command, ...]:
    """Every command of a script. One goes on where its line ends with a backslash."""
    return _walked(tuple(lines))


@lru_cache(maxsize=4)
def _walked(lines: tuple[str, ...]) -> tuple[Command, ...]:
    """A script is asked about its commands several times, and walked once."""
    return tuple(_commands(lines))


def _commands(lines: Iterable[str]) -> Iterator[Command]:
    text, starts = "", []
    for number, line in enumerate(lines, 1):
        code = without_comment(line[:_WORDS])
        starts.append((len(text), number))
        goes_on = code.rstrip().endswith("\\")
        code = code.rstrip()[:-1] + " " if goes_on else code
        text += code if len(text) < _WHOLE else ""
        if goes_on:
            continue
        if text.strip():
            yield Command(text=text, lines=tuple(starts))
        text, starts = "", []
    if text.strip():
        yield Command(text=text, lines=tuple(starts))


def starts(command: Command) -> bool:
    """Whether a launcher starts processes, of a script with any name."""
    return _STARTS.search(command.text) is not None


def starts_processes(config: ConfigFile) -> bool:
    """Whether a line starts a launcher's processes."""
    return any(starts(each) for each in commands_of(config.lines))


def by_accelerate(config: ConfigFile) -> bool:
    """Whether ``accelerate launch`` starts the job."""
    return any(_ACCELERATE.search(each.text) for each in commands_of(config.lines))


def started_by(config: ConfigFile) -> tuple[str, Location | None]:
    """The other script that a script starts with the job's arguments, and its place; empty and None without one."""
    for each in commands_of(config.lines):
        found = _SCRIPTED.search(each.text)
        if found is not None and " --" in each.text[found.end() :] and not _PYTHON.search(each.text):
            return found[1], each.at(config.path, found.start(1), found.end(1))
    return "", None


def training_alone(text: str) -> str:
    """The script with blank lines in place of the programs that train nothing, where one of its commands trains."""
    lines = text.split("\n")
    found = commands_of(lines)
    if not any(trains(each) for each in found):
        return text
    for each in found:
        run = _RUNS.search(each.text)
        arguments = "" if run is None else each.text[run.end() :]
        if " --" in arguments and not trains(each) and not _HANDS_ON.search(_VALUES.sub("", arguments)):
            for _, number in each.lines:
                lines[number - 1] = ""
    return "\n".join(lines)


def trains(command: Command) -> bool:
    """Whether a command states a training itself, or hands a recipe to a script."""
    return _STATES.search(command.text) is not None or _RECIPE.search(command.text) is not None


@lru_cache(maxsize=4)
def _jobs(path: str, lines: tuple[str, ...]) -> tuple[tuple[Command, ...], frozenset[str]]:
    """The commands of a script that train, and the arguments in which they differ. Readers ask several times."""
    jobs = tuple(each for each in commands_of(lines) if _PROGRAM.search(each.text) and trains(each))
    counts: dict[str, dict[str, int]] = {}
    for each in jobs if len(jobs) > 1 else ():
        plain = {name.replace("-", "_"): value for name, value in load_arguments(path, each.text).values.items()}
        for name, value in plain.items():
            if value is not None:
                said = counts.setdefault(name, {})
                said[str(value)] = said.get(str(value), 0) + 1
    return jobs, frozenset(name for name, said in counts.items() if len(said) > 1 or sum(said.values()) < len(jobs))


class SeveralJobs(Record):
    """A script that starts several jobs, which differ."""

    name: str
    """An argument in which they do; empty: they are given other files."""
    problem: ConfigProblem


def several(config: ConfigFile, places: Iterable[str]) -> SeveralJobs | None:
    """What is wrong with a script that starts several jobs, which differ in one of these arguments."""
    jobs, differing = _jobs(config.path, config.lines)
    if len(jobs) < 2:
        return None
    names = [name for name in places if name in differing]
    handed = {tuple(each.group(1, 2) for each in _RECIPE.finditer(job.text)) for job in jobs}
    if not names and len(handed) < 2:
        return None
    numbers = [each.lines[0][1] for each in jobs]
    where = f"lines {', '.join(str(each) for each in numbers[:-1][:_NAMED])} and {numbers[-1]}"
    if len(jobs) > _NAMED + 1:
        where = f"lines {', '.join(str(each) for each in numbers[:_NAMED])} and further down"
    what = f"`{names[0]}`" if names else "their files"
    message = f"the script starts {len(jobs)} jobs, at {where}, which differ in {what}"
    span = Span(numbers[1], 1, numbers[1], len(config.lines[numbers[1] - 1]) + 1)
    problem = ConfigProblem(Location(config.path, span), message, "name a script for each of them")
    return SeveralJobs(names[0] if names else "", problem)


_CONTAINER = re.compile(
    r"(?:^|[\s;&(\"'])(?:(?:sudo\s+)?(?:docker|podman|nerdctl)\s+(?:container\s+)?(?:run|exec)"
    r"|(?:docker[\s-]compose)\s[^|;&]{0,200}?(?:run|exec)|(?:singularity|apptainer)\s+(?:run|exec)"
    r"|kubectl\s[^|;&]{0,200}?(?:run|exec)|enroot\s+start)\s"
)
_LAUNCH = re.compile(
    r"\s[\"']?((?:torchrun|accelerate\s+launch|deepspeed|python[\d.]*|uv\s+run|trl|swift|megatron|llamafactory-cli|tune|axolotl"
    r"|litgpt|(?:/bin/)?(?:ba)?sh\s+-\w*c)\s)"
)
_NAMES = (
    "docker",
    "podman",
    "nerdctl",
    "singularity",
    "apptainer",
    "kubectl",
    "enroot",
    "ray job",
    "--container-",
    "-group",
)
_SUBMITS = re.compile(r"(?:^|[\s;&(])ray\s+job\s+submit\s")
_HANDS_OVER = re.compile(r"\s--\s+")
_OF_IMAGE = re.compile(r"\s(--container-[a-z-]+(?:=|\s+)(?:\"[^\"]*\"|'[^']*'|\S+))")
"""Options of ``srun`` that name an image and its mounts (Pyxis)."""
LOOKED_AT = 8000
"""Characters of a command in which the launch is looked for."""


def without_containers(text: str) -> str:
    """A script with blanks in place of what starts a container or submits to Ray, where a launch follows.

    Every word keeps its place.
    """
    if not any(name in text for name in _NAMES):
        return text
    lines = text.split("\n")
    for command in commands_of(lines):
        found = _inside(command)
        if found is not None:
            _blank(lines, command, *found)
        for option in _OF_IMAGE.finditer(command.text[:LOOKED_AT]):
            _blank(lines, command, *option.span(1))
    return "\n".join(lines)


def in_container(command: Command) -> bool:
    """Whether a command starts a container."""
    return _CONTAINER.search(command.text[:LOOKED_AT]) is not None


def _inside(command: Command) -> tuple[int, int] | None:
    """Where what starts a container begins, and where the launch in it does."""
    head = command.text[:LOOKED_AT]
    container = _CONTAINER.search(head)
    submits = _SUBMITS.search(head) if container is None else None
    hands = None if submits is None else _HANDS_OVER.search(head, submits.end() - 1)
    if submits is not None and hands is not None:
        return submits.start(), hands.end()
    launch = None if container is None else _LAUNCH.search(head, container.end() - 1)
    return None if container is None or launch is None else (container.start(), launch.start(1))


def _blank(lines: list[str], command: Command, start: int, end: int) -> None:
    ends = [each for each, _ in command.lines[1:]] + [len(command.text)]
    for (begin, number), until in zip(command.lines, ends, strict=True):
        first, last = max(start, begin) - begin, min(end, until) - begin
        if first < last:
            line = lines[number - 1]
            lines[number - 1] = line[:first] + " " * (last - first) + line[last:]


_FETCHES = re.compile(
    r"\s*!?\s*(?:sudo\s+)?(?:"
    r"(?:uv\s+|python3?\s+-m\s+)?pip3?\s+(?:install|download|uninstall)"
    r"|(?:conda|mamba|apt|apt-get|yum|dnf)\s+(?:-y\s+)?(?:install|update|create)"
    r"|(?:huggingface-cli|hf|modelscope)\s+download"
    r"|git\s+clone|wget|curl|rsync|nvcc|wandb|scancel|squeue|scontrol|nvidia-smi|ray\s+(?:start|stop)"
    r")(?=\s|$)"
)
_JOINED = re.compile(r"[;&|]")
"""Signs that separate two commands on one line."""


def without_installers(text: str) -> str:
    """The script with blank lines in their place. One that shares its line with another command stays."""
    lines = text.split("\n")
    number = 0
    while number < len(lines):
        end = number + 1
        while lines[end - 1].rstrip().endswith("\\") and end < len(lines):
            end += 1
        if _FETCHES.match(lines[number][:2000]) and not any(map(_JOINED.search, lines[number:end])):
            lines[number:end] = [""] * (end - number)
        number = end
    return "\n".join(lines)


_TRAINS = re.compile(r"(?:^|[\s;&])(?:swift|megatron)\s+(?:sft|pt|rlhf)(?=\s|$)")
_OTHER = re.compile(
    r"(?:^|[\s;&])(?:swift|megatron)\s+(?:infer|export|deploy|eval|app|app-ui|web-ui|merge-lora|rollout|sample)(?=\s|$)"
    r"|(?:^|[\s;&])python[\d.]*\s+(?!\S*swift/)[\"']?[\w./${}~-]+\.py[\"']?(?=\s|$)"
)


def swift_training_alone(text: str) -> str:
    """The script with blank lines in place of other commands, ms-swift's and Python's, where it has one that trains."""
    return without_others(text, _TRAINS, _OTHER)


def without_others(text: str, trains: re.Pattern[str], other: re.Pattern[str]) -> str:
    """The script with blank lines in place of the commands of ``other``, where it has one of ``trains``.

    A command ends where a line does not go on in the next one; a comment among them ends it, too.
    """
    lines = text.split("\n")
    commands: list[list[int]] = [[]]
    for number, line in enumerate(lines):
        commands[-1].append(number)
        if not line.rstrip().endswith("\\"):
            commands.append([])
    said = [" ".join(without_comment(lines[n])[:2000] for n in command) for command in commands]
    if not any(map(trains.search, said)):
        return text
    for command, words in zip(commands, said, strict=True):
        if other.search(words) and not trains.search(words):
            for number in command:
                lines[number] = ""
    return "\n".join(lines)
