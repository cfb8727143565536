"""YAML that starts a job on some platform (Kubernetes, dstack, SkyPilot, Docker Compose): what it is, and its command.

Nothing here knows a platform's whole format. A platform is told by keys that it alone has, and a command by the names
under which every platform keeps one; the machine by the words for GPUs.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from memcheck.configs.arguments import load_arguments
from memcheck.configs.launch_lines import Command, commands_of
from memcheck.configs.next_command import Machine
from memcheck.configs.other_jobs import RlJob, Server, of_launch, server, split
from memcheck.configs.serve_lines import STARTS as SERVES
from memcheck.configs.serve_lines import version_in
from memcheck.configs.shell_values import resolved
from memcheck.configs.types import ConfigError
from memcheck.configs.wrapper_command import CALLS, RANKED, RUNS, SHELL, STARTS, VARIABLE, counts, launch_words, rank
from memcheck.configs.wrapper_kinds import title_of
from memcheck.configs.wrapper_machine import machine_of, mappings
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
