"""YAML that starts a job on some platform (Kubernetes, dstack, SkyPilot, Docker Compose): what it is, and its command.

Nothing here knows a platform's whole format. A platform is told by keys that it alone has, and a command by the names
under which every platform keeps one; the machine by the words for GPUs.

Makefiles, justfiles and Dockerfiles as shell scripts: each recipe line and instruction stays on its line.

A variable of make becomes one of the shell. Nothing is expanded here: functions of make, conditions, and includes stay
as they are written, and the shell's reader asks for a variable that it cannot resolve.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from memcheck.configs.arguments import load_arguments
from memcheck.configs.launch_lines import Command, commands_of
from memcheck.configs.next_command import NO_MACHINE, Machine
from memcheck.configs.other_jobs import RlJob, Server, of_launch, server, split
from memcheck.configs.serve_lines import STARTS as SERVES
from memcheck.configs.serve_lines import version_in
from memcheck.configs.shell_values import resolved
from memcheck.configs.types import ConfigError
from memcheck.configs.wrapper_command import (
    CALLS,
    DOCKER,
    LEARNS,
    MOST_ADDED,
    RANKED,
    RUNS,
    SHELL,
    STARTS,
    VARIABLE,
    build_title,
    counts,
    launch_words,
    machine_of,
    mappings,
    rank,
    title_of,
)
from memcheck.edge.libyaml import yaml
from memcheck.plan.compose import ComposeError, Composer
from memcheck.plan.finding import Location, Span
from memcheck.plan.places import Marks, escape
from memcheck.plan.text import split_lines
from memcheck.record import Record

COMMANDS = (
    "command",
    "commands",
    "run",
    "entrypoint",
    "entrypoints",
    "script",
    "source",
    "cmd",
    "args",
    "arguments",
    "init",
)
"""Keys under which a command stands, or the lines of a script."""
FURTHEST = 400
"""Lines of a value in which its command is looked for."""
MOST_SERVERS = 64
"""Servers of a file."""


class WrappedLaunch(Record):
    """What a file starts, and where it says so."""

    title: str
    location: Location
    """The command, or the file where none stands in it."""
    words: tuple[str, ...]
    machine: Machine
    job: RlJob | None = None
    server: Server | None = None
    version: str = ""
    """The version that the tag of the server's image names."""
    titled: bool = True
    """Whether the file has the keys of a platform."""
    others: tuple[WrappedLaunch, ...] = ()
    """The file's further servers, where this is one; of a build file the other commands that launch as much."""


def wrapped(path: str, text: str) -> WrappedLaunch | None:
    """The first command of a platform's file that launches something; None for a file of no platform.

    A server comes with the servers beside it and in later documents.
    """
    lines = split_lines(text)
    titled: WrappedLaunch | None = None
    best: tuple[int, WrappedLaunch] | None = None
    others: list[WrappedLaunch] = []
    try:
        for document in Composer(text).documents():
            values = document.values
            if not isinstance(values, dict):
                continue
            title = title_of(values)
            found = _inside(path, lines, values, Marks(path, document.root, {path: lines}), title)
            if found is not None and (title or found.words):
                ranked = STARTS if found.server is not None else rank(" ".join(found.words))
                if best is not None and best[1].server is not None:
                    others += [found._replace(others=()), *found.others] if found.server is not None else []
                elif best is None or ranked > best[0]:
                    best, others = (ranked, found), [*found.others]
            if title and titled is None:
                at = Marks(path, document.root, {path: lines}).get("")
                start = Location(path, Span(1, 1, 1, 1)) if at is None else at.value
                start = start._replace(span=_first(start.span))
                titled = WrappedLaunch(title=title, location=start, words=(), machine=machine_of(values))
    except (ComposeError, yaml.YAMLError):
        return None
    return titled if best is None else best[1]._replace(others=tuple(others[:MOST_SERVERS]))


def _first(span: Span) -> Span:
    return Span(span.line, span.column, span.line, span.column + 1)


def _inside(
    path: str, lines: tuple[str, ...], values: Mapping[str, Any], marks: Marks, title: str
) -> WrappedLaunch | None:
    """The command that launches most: a job of reinforcement learning or a server counts as one that trains."""
    best: tuple[int, WrappedLaunch] | None = None
    servers: list[WrappedLaunch] = []
    machine, everywhere = machine_of(values), _environment(values)
    least = CALLS if title.endswith(BUILDS) else RUNS
    for pointer, holder in mappings(values):
        environment = {**everywhere, **_environment(holder)}
        image = str(holder.get("image", ""))
        for key, script in _scripts(holder):
            given = _of_entry_point(image, script)
            script = f"vllm serve {script}" if given else script
            mark = marks.get(f"{pointer}/{escape(key)}")
            if mark is None:
                continue
            for command in commands_of(script.split("\n")):
                ranked = rank(command.text)
                served = server(path, (command,)) if ranked >= least else None
                served = served if len(servers) < MOST_SERVERS else None
                if ranked >= least and (best is None or ranked > best[0] or served is not None):
                    known = {**_counts(machine), **environment, **_assigned(script, environment)}
                    words = launch_words(command.text, known)
                    at = _place(path, lines, mark.value.span.line, words[2:] if given else words, command)
                    job = of_launch(path, (command,))
                    launch = WrappedLaunch(
                        title=title or "a file that starts a job",
                        titled=bool(title),
                        location=at,
                        words=words,
                        machine=machine.filled(counts(words)),
                        version=version_in(image),
                        job=None if job is None else job._replace(location=at),
                        server=None if served is None else served._replace(location=at, words=words),
                    )
                    servers += [launch] if served is not None else []
                    best = (ranked, launch) if best is None or ranked > best[0] else best
    if best is None or best[1].server is None:
        return None if best is None else best[1]
    return best[1]._replace(others=tuple([each for each in servers if each is not best[1]]))


BUILDS = ("GitHub Actions", "GitLab pipeline")
"""Ends of the titles of platforms that run every kind of program: only those with a training's name count."""


def _of_entry_point(image: str, script: str) -> bool:
    """Whether a command is arguments of an image that starts vLLM: options, or a model's id before them."""
    first = script.split(maxsplit=1)[:1]
    if not SERVES.search(image) or not first or SERVES.search(script[:RANKED]):
        return False
    return first[0].startswith("--") or re.fullmatch(r"[\w.-]+/[\w.-]+", first[0]) is not None


def _scripts(holder: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The key of each command of a mapping, and its lines."""
    command, arguments = holder.get("command") or holder.get("entrypoint"), holder.get("args")
    first = "command" if holder.get("command") else "entrypoint"
    if isinstance(command, (str, list)) and isinstance(arguments, (str, list)):
        whole = _texts(command) + _texts(arguments) if isinstance(command, list) else [str(command), *_texts(arguments)]
        yield first, _script(whole)
        return
    for key in COMMANDS:
        value = holder.get(key)
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, list) and value and all(isinstance(each, (str, int, float)) for each in value):
            yield (
                key,
                "\n".join(map(str, value)) if key in ("commands", "run", "script", "init") else _script(_texts(value)),
            )


def _texts(value: str | list[Any]) -> list[str]:
    return [value] if isinstance(value, str) else [str(each) for each in value]


def _script(words: list[str]) -> str:
    """Words of a command as a line of a shell; of ``bash -c`` the script that it is given."""
    for number, word in enumerate(words[1:4], 1):
        if SHELL.match(words[0]) and re.match(r"-\w*c\Z", word) and number + 1 < len(words):
            return next((each for each in words[number + 1 :] if each != "--"), "")
    if len(words) == 1 or (len(words) > 1 and " " in words[0].strip()):
        return " ".join(words)
    return " ".join(word if VARIABLE.search(word) and " " not in word else shlex.quote(word) for word in words)


def _place(path: str, lines: tuple[str, ...], start: int, words: tuple[str, ...], command: Command) -> Location:
    """Where a command stands: the first line of its value on which its first words do."""
    first = [each for each in (words or split(command.text))[:3] if each]
    near = range(start, min(len(lines), start + FURTHEST) + 1)
    for wanted in (first, first[:2], first[:1]):
        for number in near:
            line = lines[number - 1]
            if wanted and all(each in line for each in wanted):
                return Location(path, Span(number, line.index(wanted[0]) + 1, number, len(line.rstrip()) + 1))
    return Location(path, Span(start, 1, start, 2))


def _environment(holder: Mapping[str, Any]) -> dict[str, str]:
    """Variables that a platform sets: a mapping, ``NAME=value``, or pairs of `name` and `value`."""
    found: dict[str, str] = {}
    for key in ("env", "envs", "environment", "environment_variables"):
        value = holder.get(key)
        pairs = value.items() if isinstance(value, dict) else ()
        found.update((str(name), str(each)) for name, each in pairs if isinstance(each, (str, int, float)))
        for each in value if isinstance(value, list) else ():
            if isinstance(each, str) and "=" in each:
                name, _, text = each.partition("=")
                found[name] = text
            elif isinstance(each, dict) and isinstance(each.get("value"), (str, int, float)):
                found[str(each.get("name"))] = str(each["value"])
    return {name: resolved(value, found) for name, value in found.items()}


def _assigned(script: str, environment: Mapping[str, str]) -> dict[str, str]:
    """What a script sets its own variables to."""
    try:
        found = load_arguments("", script, defines=environment).variables
    except ConfigError:
        return {}
    return {name: value for name, value in found.items() if value and "$" not in value}


def _counts(machine: Machine) -> dict[str, str]:
    """What platforms put into the environment of a job: how many GPUs and nodes it has."""
    found = dict.fromkeys(_OF_NODES, str(machine.nodes))
    found.update(dict.fromkeys(_OF_GPUS, str(machine.gpus_per_node)) if machine.gpus_per_node else {})
    return found


_OF_NODES = ("SKYPILOT_NUM_NODES", "DSTACK_NODES_NUM", "PET_NNODES")
_OF_GPUS = ("SKYPILOT_NUM_GPUS_PER_NODE", "DSTACK_GPUS_PER_NODE", "PET_NPROC_PER_NODE")


_SET = re.compile(r" {0,8}(?:export\s+|override\s+)*([A-Za-z_]\w*)\s*(:{0,3}|\?|\+)=(?!=)\s*(.*)")
_IF, _ENDIF = re.compile(r"\s*if(?:n?def|n?eq)\b"), re.compile(r"\s*endif\b")
_USED = re.compile(r"\$[({]([A-Za-z_]\w*)[)}]|\{\{\s*([A-Za-z_]\w*)\s*\}\}")
_INSTRUCTION = re.compile(r"\s*(?:(RUN|CMD|ENTRYPOINT)|(ENV|ARG))\s", re.IGNORECASE)
_MOUNT = re.compile(r"\s+--(?:mount|network|security)=\S+")
_PAIR = re.compile(r"([A-Za-z_]\w*)(?:=|\s+)(\"[^\"]*\"|'[^']*'|\S+)")
MOST_LINES = 20_000
"""Lines of a file that are looked at."""
MOST_CANDIDATES = 200
"""Commands that are ranked."""


class BuildScript(Record):
    """A build file as a shell script, and the variables that it sets."""

    text: str
    variables: Mapping[str, str]


def as_script(path: str, text: str) -> BuildScript:
    """The shell script that a build file's recipes are, each line where it stands; empty for any other file."""
    title = build_title(path, text)
    variables: dict[str, str] = {}
    if not title:
        return BuildScript("", variables)
    lines = text.split("\n")[:MOST_LINES]
    made = _of_docker(lines, variables) if title == DOCKER else _of_recipes(lines, variables)
    return BuildScript("\n".join(made), {name: resolved(value, variables) for name, value in variables.items()})


def of_build_file(path: str, text: str) -> WrappedLaunch | None:
    """The command of a build file that launches most, of equals the first; None for any other file."""
    title = build_title(path, text)
    if not title:
        return None
    ranked = _ranked(as_script(path, text))
    best = max((each.ranked for each in ranked), default=0)
    if best < LEARNS:
        return WrappedLaunch(title=title, location=Location(path, Span(1, 1, 1, 2)), words=(), machine=NO_MACHINE)
    lines = text.split("\n")
    first, *others = {each.words: _launch(path, title, lines, each) for each in ranked if each.ranked == best}.values()
    return first._replace(others=tuple(others[:MOST_SERVERS]))


def _launch(path: str, title: str, lines: list[str], each: _Ranked) -> WrappedLaunch:
    """One command of a build file."""
    command, words = each.command, each.words
    line = command.lines[0][1]
    first = len(command.text) - len(command.text.lstrip())
    at = Location(path, Span(line, first + 1, line, len(lines[line - 1].rstrip()) + 1))
    job, served = of_launch(path, (command,)), server(path, (command,))
    return WrappedLaunch(
        title=title,
        location=at,
        words=words,
        machine=counts(words),
        job=None if job is None else job._replace(location=at),
        server=None if served is None else served._replace(location=at, words=words),
    )


class _Ranked(Record):
    """A command, how much it launches, and the words of its launch with the file's variables filled in."""

    ranked: int
    command: Command
    words: tuple[str, ...]


def _ranked(script: BuildScript) -> list[_Ranked]:
    """Commands of a script that run Python or launch something: at most :data:`MOST_CANDIDATES`."""
    known = {name: value for name, value in script.variables.items() if "$" not in value}
    found: list[_Ranked] = []
    for command in commands_of(script.text.split("\n")):
        if len(found) < MOST_CANDIDATES and ("$" in command.text[:RANKED] or rank(command.text)):
            words = launch_words(command.text, known)
            ranking = rank(" ".join(words))
            found += [_Ranked(ranking, command, words)] if ranking else []
    return found


def _of_recipes(lines: list[str], variables: dict[str, str]) -> Iterator[str]:
    """A Makefile or a justfile: assignments and recipe lines.

    A variable that a condition of make sets is left out of ``variables``: which branch holds is not known.
    """
    goes_on, deep, open_names = False, 0, set[str]()
    for line in lines:
        deep = max(0, deep + (_IF.match(line) is not None) - (_ENDIF.match(line) is not None))
        said = None if goes_on or line.startswith("\t") else _SET.match(line)
        if said is None:
            recipe = goes_on or line[:1] in ("\t", " ")
            code = _shell(line)
            plain = code.lstrip()
            sign = 0 if goes_on else len(plain) - len(plain.lstrip("@-+"))
            goes_on = recipe and line.rstrip().endswith("\\")
            yield code[: len(code) - len(plain)].replace("\t", " ") + " " * sign + plain[sign:] if recipe else ""
            continue
        name, value = said[1], _shell(said[3].partition(" #")[0].strip().strip("\"'"))
        open_names |= {name} if deep else set()
        if said[2] == "+" and len(variables.get(name, "")) < MOST_ADDED:
            value = f"{variables.get(name, '')} {value}".strip()
        variables[name] = value
        yield ""
    for name in open_names:
        del variables[name]


def _shell(text: str) -> str:
    """Variables of make and just as those of the shell. ``$$`` is the shell's own dollar sign."""
    return _USED.sub(lambda each: f"${{{each[1] or each[2]}}}", text).replace("$$", "$")


def _of_docker(lines: list[str], variables: dict[str, str]) -> list[str]:
    """A Dockerfile: what its last stage runs. An entry point and the command after it are one command."""
    made = [""] * len(lines)
    entry: tuple[int, str] = (0, "")
    for command in commands_of(lines):
        kind = _INSTRUCTION.match(command.text)
        if kind is None:
            continue
        number, rest = command.lines[0][1], command.text[kind.end() :].strip()
        if kind[2]:
            variables.update((name, value.strip("\"'")) for name, value in _PAIR.findall(rest))
            continue
        code = _words(_MOUNT.sub("", f" {rest}").strip())
        word = kind[1].upper()
        if word == "CMD" and entry[0]:
            made[entry[0] - 1], code = "", f"{entry[1]} {code}"
        entry = (number, code) if word == "ENTRYPOINT" else entry
        made[number - 1] = code
    return made


def _words(text: str) -> str:
    """An instruction in JSON form as a line of a shell."""
    if not text.startswith("["):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    words = [str(each) for each in found] if isinstance(found, list) else []
    if len(words) > 2 and re.fullmatch(r"(?:/bin/)?(?:ba)?sh", words[0]) and re.fullmatch(r"-\w*c", words[1]):
        return words[2]
    return " ".join(word if re.fullmatch(r"[\w./:=@${}+,-]+", word) else json.dumps(word) for word in words)
