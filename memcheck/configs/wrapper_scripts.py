"""Makefiles, justfiles and Dockerfiles as shell scripts: each recipe line and instruction stays on its line.

A variable of make becomes one of the shell. Nothing is expanded here: functions of make, conditions, and includes stay
as they are written, and the shell's reader asks for a variable that it cannot resolve.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from memcheck.configs.launch_lines import Command, commands_of
from memcheck.configs.next_command import NO_MACHINE
from memcheck.configs.other_jobs import of_launch, server
from memcheck.configs.shell_values import resolved
from memcheck.configs.wrapper_command import LEARNS, MOST_ADDED, RANKED, counts, launch_words, rank
from memcheck.configs.wrapper_kinds import DOCKER, build_title
from memcheck.configs.wrappers import MOST_SERVERS, WrappedLaunch
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

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
