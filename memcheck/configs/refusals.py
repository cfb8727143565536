"""Files that no reader takes: each is named for what it is, with the one command that goes on."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping

from memcheck.configs import python_source
from memcheck.configs import serve_lines as serve_python
from memcheck.configs.config_file import ConfigFile, located
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_devices import asked, hinted_gpu, per_node
from memcheck.configs.launch_lines import Command, commands_of, in_container
from memcheck.configs.next_command import LIKE, NO_MACHINE, NO_NAME, Machine, gpu_named, of_command, of_file, of_model
from memcheck.configs.other_jobs import VLLM, RlJob, named, of_keys, of_launch, server, stated_by, way_on
from memcheck.configs.python_code import code_of, kind_of
from memcheck.configs.python_job import followed, imports_others, reason, runs_on_gpu, trains
from memcheck.configs.serve_lines import is_dockerfile, version_in
from memcheck.configs.shell_values import asked_of_slurm, resolved
from memcheck.configs.syntax import ARGUMENTS, LAUNCH, YAML, syntax_of
from memcheck.configs.trainer_script import overridden
from memcheck.configs.types import ConfigError, ElsewhereError
from memcheck.configs.wrapper_command import LEARNS, PLATFORM, PROGRAM, rank
from memcheck.configs.wrappers import WrappedLaunch, of_build_file, wrapped
from memcheck.edge.opener import is_file
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

_SCRIPT = re.compile(
    r"(?:^|[\s;&])(?:bash|sh|srun|sbatch|exec|qsub)\s(?:[^|;&]*?\s)??[\"']?((?:[\w.~/-]|\$\{?\w+\}?)+\.(?:sh|slurm|sbatch))\b"
)
_CALLED = re.compile(r"^\s*(?:[A-Za-z_]\w*=\S+\s+)*[\"']?((?:\.{1,2}|[\w-]+)?/[\w./-]+\.(?:sh|slurm|sbatch))\b")
_APPLIED = re.compile(
    r"(?:^|[\s;&])(?:sky\s+(?:jobs\s+)?(?:launch|exec)|dstack\s+apply|kubectl\s+(?:apply|create|replace)|docker[\s-]compose"
    r"|modal\s+run)\s[^|;&]{0,500}?(?<![\w./~-])([\w./~-]+\.(?:ya?ml|py))\b"
)
_TOML = re.compile(
    r"(?:--(?:job\.)?config[_-]file[=\s]+|CONFIG_FILE=)[\"']?(?:\$\{CONFIG_FILE:-)?[\"']?([\w./~-]+\.toml)"
)
MOST = 2000
"""Characters of a command that are looked at for another file."""


def of_python(path: str, text: str, beside: Mapping[str, object]) -> ConfigError | None:
    """The refusal of a Python file or a notebook that trains nothing which is read; None for every other file.

    ``text``: empty where it is too large.
    """
    kind = kind_of(path, text)
    if not kind:
        return None
    code = code_of(path, text)
    line, help = python_source.way_on(code, NO_MACHINE.stated(beside))
    if line > 1:
        message = f"this is {kind}: this line launches a job, and the file is not run"
        return located(Location(path, Span(line, 1, line, 2)), message, help)
    run = followed(code)
    if runs_on_gpu(code) and (trains(run) or imports_others(code)):
        return None
    at, why = reason(code, run) if text else (Location(path, Span(1, 1, 1, 2)), "it is too large to be read")
    if NO_NAME in help and any(map(why.startswith, key_table("python").words["others"].values())):
        help = "of Python, memcheck reads what trains language models with transformers' Trainer or TRL"
    return located(at, f"this is {kind}, read and not run: {why}", help)


def before_syntax(path: str, text: str, beside: Mapping[str, object]) -> None:
    """Files that are recognised as they stand: Python, notebooks, and what starts jobs on a platform.

    Raises:
        ConfigError: the file is one of them.
    """
    python = None if text.startswith(LAUNCH) else of_python(path, text, beside)
    if python is not None:
        raise python
    wrapper = wrapper_of(path, text)
    if wrapper is not None:
        raise _wrapper(wrapper, beside)


def wrapper_of(path: str, text: str) -> WrappedLaunch | None:
    """The launch of a platform's file or of a build file; None for every other file, and for one that serves."""
    if text.startswith(LAUNCH):
        return None
    built = of_build_file(path, text)
    if built is not None:
        return None if is_dockerfile(text) and (built.server is not None or not built.words) else built
    if syntax_of(path, text) != YAML or not PLATFORM.search(text):
        return None
    found = wrapped(path, text)
    return found if found is not None and found.titled else None


class InsideLaunch(Record):
    """The launch of a platform's file, or of a call in Python."""

    text: str
    """A script in which the launch is on its own line, and every other line is empty."""
    words: str
    location: Location
    machine: Machine
    serves: bool = False
    """Whether it starts a server that a reader reads."""
    release: Mapping[str, str] = {}
    """``framework_version`` where the file names it, as in the tag of an image."""


def launch_inside(path: str, text: str, beside: Mapping[str, object]) -> InsideLaunch | None:
    """The launch of a platform's file, and the machine that the file asks for; the call that starts vLLM in Python.

    ``beside``: what the command line states. None for every other file, and for a launch that no reader has: of
    reinforcement learning, of another server, with a variable that the file does not set.
    """
    if kind_of(path, text):
        call = serve_python.call_of(text)
        if call is None or trains(followed(code_of(path, text))):
            return None
        words = serve_python.as_text(call, str(beside.get("gpu", "")))
        return _alone(path, words, call.line, len("vllm"), NO_MACHINE)._replace(serves=True)
    found = wrapper_of(path, text)
    if found is None or not found.words or found.job is not None:
        return None
    servers = [each.server for each in (found, *found.others) if each.server is not None]
    if any(each.title != VLLM for each in servers):
        return None
    line = found.location.span.line
    if found.server is not None:
        launch = _alone(path, _joined(found.words), line, len(found.words[0]), found.machine)
        launch = launch._replace(text=_together((found, *found.others)))
        version = found.version or version_in(" ".join(found.words))
        return launch._replace(serves=True, release={"framework_version": version} if version else {})
    if line < 2 or rank(" ".join(found.words)) < LEARNS:
        return None
    launch = _alone(path, _joined(found.words), line, len(found.words[0]), found.machine)
    return launch._replace(text=_together((found, *found.others))) if found.others else launch


def _together(launches: tuple[WrappedLaunch, ...]) -> str:
    """A script with every launch on its line. The reader says of launches that differ where they are."""
    lines: dict[int, str] = {}
    for each in launches:
        number = max(each.location.span.line, 2)
        while number in lines:
            number += 1
        lines[number] = _joined(each.words)
    return LAUNCH + "\n".join(lines.get(number, "") for number in range(1, max(lines) + 1)) + "\n"


def _joined(words: tuple[str, ...]) -> str:
    """Words as a shell's line, in which variables stay variables."""
    return " ".join(word if "$" in word and " " not in word else shlex.quote(word) for word in words)


def _alone(path: str, words: str, line: int, length: int, machine: Machine) -> InsideLaunch:
    text = LAUNCH + "\n" * max(line - 1, 1) + words + "\n"
    return InsideLaunch(
        text=text, words=words, location=Location(path, Span(line, 1, line, length + 1)), machine=machine
    )


def _wrapper(found: WrappedLaunch, beside: Mapping[str, object]) -> ConfigError:
    """A platform's file, by what it starts."""
    machine = found.machine.stated(beside)
    line = found.location.span.line
    if found.job is not None:
        said = stated_by((Command(text=" ".join(found.words), lines=((0, line),)),))
        return located(found.location, _within(found, found.job.message), way_on(found.job, said, machine.said))
    if found.server is not None:
        message = found.server.message
        if found.others:
            kinds = dict.fromkeys(each.server.title for each in (found, *found.others) if each.server is not None)
            message = f"this is {' and '.join(kinds)}: memcheck checks a file with one server, of vLLM"
        return located(found.location, _within(found, message), found.server.way_on(machine))
    if found.words:
        return _named_launch(found, machine)
    message = f"this is {found.title}, in which no command launches a training"
    help = of_model("its image decides what runs; estimate its model, for example", LIKE, machine)
    return located(found.location, message, help)


def _named_launch(found: WrappedLaunch, machine: Machine) -> ConfigError:
    """A launch that no reader has taken, with its line and the command that checks it."""
    line = found.location.span.line
    others = [each.location.span.line for each in found.others][:MOST_LINES]
    message = f"this is {found.title}: its launch is on line {line}"
    message += f", and others are on lines {', '.join(map(str, others))}" if others else ""
    called = _SCRIPT.search(" ".join(found.words[:MOST_LINES])) or _CALLED.search(found.words[0])
    if called is not None:
        return located(found.location, f"{message}, in `{called[1]}`", of_file("name that file", called[1], machine))
    if found.words[0].startswith("-"):
        message = f"this is {found.title}: its image starts the program that line {line} gives arguments to"
        return located(found.location, message, of_model("estimate its model, for example", LIKE, machine))
    return located(found.location, message, of_command("check the launch", found.words, machine))


MOST_LINES = 20
"""Lines that a message names, and words among which a script is looked for."""


def _within(found: WrappedLaunch, message: str) -> str:
    return f"{message} (it is launched by {found.title}, on line {found.location.span.line})"


def before_formats(config: ConfigFile, syntax: str, beside: Mapping[str, object]) -> None:
    """Jobs of reinforcement learning, which have a trainer's arguments among their own.

    Raises:
        ConfigError: the config or the script is one of them.
    """
    commands = commands_of(config.lines) if syntax == ARGUMENTS else ()
    job = of_launch(config.path, commands) or of_keys(config)
    set_here = overridden(config.lines) if syntax == ARGUMENTS and job is None else None
    if set_here is not None:
        number, key = set_here
        job = named("a NeMo-RL job", Location(config.path, Span(number, key.start(1) + 1, number, key.end(1) + 1)))
    if job is not None:
        raise rl_error(job, config, commands, beside)


def rl_error(
    job: RlJob, config: ConfigFile, commands: tuple[Command, ...], beside: Mapping[str, object]
) -> ConfigError:
    """The refusal of a job of reinforcement learning."""
    said: dict[str, object] = {**config.values, **stated_by(commands)}
    said = {key: resolved(each, config.variables) if isinstance(each, str) else each for key, each in said.items()}
    return located(job.location, job.message, way_on(job, said, beside))


def after_formats(path: str, text: str, config: ConfigFile, syntax: str, beside: Mapping[str, object]) -> None:
    """Raise the error for a file that no framework's reader has taken.

    Raises:
        ConfigError: a server, a container's command, a script that calls another, a file that starts a job.
    """
    machine = asked_for(config).stated(beside)
    if syntax == YAML:
        found = wrapped(path, text)
        if found is not None and found.words:
            raise _wrapper(found, beside)
    if syntax != ARGUMENTS:
        return
    commands = commands_of(config.lines)
    job = of_keys(config, late=True)
    if job is not None:
        raise rl_error(job, config, commands, beside)
    served = server(path, commands)
    if served is not None:
        served = served._replace(words=tuple([resolved(word, config.variables) for word in served.words]))
        raise located(served.location, served.message, served.way_on(machine))
    for command in commands:
        head = command.text[:MOST]
        for pattern, what in (
            (_APPLIED, "the job is in"),
            (_TOML, "the job's config is"),
            (_SCRIPT, "the launch is in"),
            (_CALLED, "the launch is in"),
        ):
            file = pattern.search(head)
            if file is not None:
                at = command.at(path, file.start(1), file.end(1))
                message = f"{what} `{file[1]}`, which line {at.span.line} names"
                raise elsewhere(at, message, resolved(file[1], config.variables), config, beside)
        if in_container(command):
            number = command.lines[0][1]
            message = f"this starts a container on line {number}, and no launch is on the line"
            intro = "its image decides what runs; estimate its model, for example"
            raise located(Location(path, Span(number, 1, number, 2)), message, of_model(intro, LIKE, machine))


def elsewhere(
    at: Location, message: str, name: str, config: ConfigFile, beside: Mapping[str, object]
) -> ElsewhereError:
    """The refusal of a launch that names the file of its arguments, with the command for that file.

    The file is looked for in the launch's own folder first.
    """
    near = os.path.join(os.path.dirname(config.path), name)
    shown = near if os.path.dirname(config.path) and is_file(near) else name
    machine = asked_for(config).stated(beside)
    help = of_file("name that file", shown.replace(os.sep, "/"), machine)
    text = f"{at.path}:{at.span.line}:{at.span.column}: {message}"
    return ElsewhereError(text, help, at, name, machine.said)


def asked_for(config: ConfigFile) -> Machine:
    """What the script's own comments ask Slurm for, or its launcher is told."""
    found = per_node(config)
    typed = next((gpu_named(each.type)[0] for each in asked(config) if each.type), "")
    nodes = max(
        (int(each[4]) for option, _, each in asked_of_slurm(config.lines) if option in ("nodes", "N")), default=1
    )
    count = 0
    for name in ("nproc_per_node", "nproc-per-node", "num_gpus"):
        value = resolved(str(config.values.get(name, "")), config.variables)
        count = count or (int(value) if value.isdecimal() and len(value) < 3 else 0)
    count = max(count, 0 if found is None else found[0])
    return Machine(gpu=typed or hinted_gpu(config), gpus_per_node=count, nodes=max(nodes, 1))


def learning_script(config: ConfigFile) -> tuple[str, Location] | None:
    """The program of the command that looks most like a training, and its place; None where no command does."""
    best: tuple[int, Command] | None = None
    for command in commands_of(config.lines):
        ranked = rank(command.text)
        if ranked >= LEARNS and (best is None or ranked > best[0]):
            best = (ranked, command)
    found = None if best is None else PROGRAM.search(best[1].text[:MOST])
    if best is None or found is None:
        return None
    return found[1] or found[2], best[1].at(config.path, *found.span(1 if found[1] else 2))


def asked_in_words(config: ConfigFile) -> str:
    """What a script asks its scheduler for, as the end of a message; empty where it asks for nothing."""
    machine = asked_for(config)
    gpus = f"{machine.gpus_per_node} {'GPU' if machine.gpus_per_node == 1 else 'GPUs'}" if machine.gpus_per_node else ""
    gpus = f"{machine.gpus_per_node or 1} x {machine.gpu}" if machine.gpu else gpus
    nodes = f"{machine.nodes} nodes" if machine.nodes > 1 else ""
    said = f"{nodes} with {gpus} each" if nodes and gpus else nodes or gpus
    return f"; the script asks for {said}" if said else ""
