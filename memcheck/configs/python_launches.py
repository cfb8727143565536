"""Launch lines of a Python file that stand around it: in its own text, in pages, scripts, Makefiles and notebooks.

Only lines that start a program are looked at, and nothing is run. Files, their bytes and lines are bounded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from memcheck.configs.config_file import ConfigFile, parse_text
from memcheck.configs.launch_lines import commands_of
from memcheck.configs.types import NO_DEFINES, ConfigError
from memcheck.configs.wrapper_command import PROGRAM
from memcheck.configs.wrappers import BuildScript, as_script
from memcheck.edge.opener import names_in, real_path, repository
from memcheck.plan.text import shown_path
from memcheck.record import Record

MOST_FILES, MOST_BYTES, MOST_LAUNCHES, MOST_CONTINUED = 60, 4 << 20, 8, 40
"""Files that are read, their bytes together, launch lines that are taken, and lines of one command."""
LARGEST = 1 << 18
"""Characters of one file: what is longer is no page that a person wrote."""
MOST_FOLDERS = 6
"""Folders from the script's up to the top of its repository."""
BELOW = ("scripts", "bin", "docs", "jobs", "slurm", "notebooks", ".github/workflows")
"""Folders of a repository in which launch lines are kept, besides the script's own and those above it."""
SHELL = (".sh", ".bash", ".slurm", ".sbatch", ".pbs")
BUILD = ("makefile", "justfile", "gnumakefile")
_RUNS = r"(?:python[\d.]*(?:\.exe)?|torchrun|accelerate\s+launch|deepspeed)\s"
_LINE = re.compile(
    r"[\s#$!>%\"'`-]*(?:run:\s*)?"
    rf"(?P<line>(?:[A-Z_][A-Z0-9_]*=\S+\s+)*(?:(?:nohup|time|exec|srun|(?:uv|poetry|pipenv|pdm)\s+run)\s+)*\S*{_RUNS}.*)"
)
LAUNCHER = re.compile(r"(?:^|[\s;&/])(?:torchrun|accelerate\s+launch|deepspeed|srun)\s|torch\.distributed")
"""What starts several processes."""
_PROGRAM = re.compile(rf"(?:^|[\s;&/\\]){_RUNS}")
_SETS = re.compile(r"\s*(?:(?:export|local|declare|readonly)\s+)*[A-Za-z_]\w*\+?=|\s*(?:el)?if\s")
_ARRAY = re.compile(r"^[ \t]*(\w+)\+?=\([^()]{0,8000}\)", re.MULTILINE)
_OPEN = re.compile(
    r"[<>]|\.\.\.|\u2026|(?<!\$)\{|\[|(?<![\w/])(?:path/to|YOUR|your[_-])|\s--?h(?:elp)?\b"
    r"|\s--(?:smoke|dry|debug|resume|eval[_-]only|test)[\w-]*"
)
"""What stands for a value that the reader of a page puts in, and options of a trial, a second start or a help text."""


class Launch(Record):
    """A command that runs the script."""

    path: str
    line: int
    code: str
    """The command, or a script of a shell with no other command that starts a program."""
    lines: tuple[str, ...]
    """The file as it is."""
    shown: str
    """The command in one line."""
    variables: Mapping[str, str] = NO_DEFINES
    """What a Makefile sets."""
    alone: bool = False
    """Whether ``code`` starts on the first line of the command, and not on that of the file."""

    @property
    def text(self) -> str:
        """The code with the command on its own line of the file."""
        return "\n" * (self.line - 1) + self.code if self.alone else self.code


def launches_of(config: ConfigFile) -> list[Launch]:
    """The launch lines of a Python file, each different one once: its own first, then those of the nearest files."""
    folder = real_path(os.path.dirname(config.path) or ".")
    root = config.inside or repository(folder)[0]
    script = os.path.relpath(real_path(config.path), root).replace(os.sep, "/")
    found: dict[str, Launch] = {}
    for path, text in _texts(config, folder, root):
        where = os.path.relpath(real_path(os.path.dirname(path) or "."), root).replace(os.sep, "/")
        for launch in _in_file(path, text):
            if _is_of(launch.shown, script, "" if where == "." else where, own=path == config.path):
                found.setdefault(" ".join(launch.shown.split()), launch)
                if len(found) == MOST_LAUNCHES:
                    return list(found.values())
    return list(found.values())


def _texts(config: ConfigFile, folder: str, root: str) -> Iterator[tuple[str, str]]:
    """The files around the script that may hold a launch line, the script first."""
    yield config.path, config.text
    folders, here = [folder], folder
    while here != root and len(folders) < MOST_FOLDERS and os.path.dirname(here) != here:
        here = os.path.dirname(here)
        folders.append(here)
    folders += [os.path.join(each, below) for each in dict.fromkeys((folders[-1], folder)) for below in BELOW]
    files, size = 0, 0
    for each in dict.fromkeys(folders):
        for name in names_in(each):
            path = shown_path(os.path.join(each, name) if os.path.isabs(config.path) else _relative(each, name))
            if files == MOST_FILES or size > MOST_BYTES:
                return
            try:
                text = parse_text(path, config.read(path))
            except (OSError, ConfigError):
                continue
            files, size = files + 1, size + len(text)
            yield path, text if len(text) <= LARGEST or name.endswith(".ipynb") else ""


def _relative(folder: str, name: str) -> str:
    return os.path.relpath(os.path.join(folder, name))


def _in_file(path: str, text: str) -> Iterator[Launch]:
    """The commands of one file that run Python."""
    name = os.path.basename(path).lower()
    if name.endswith(SHELL) or name in BUILD:
        built = BuildScript(text, NO_DEFINES) if name.endswith(SHELL) else as_script(path, text)
        yield from _in_script(path, text, built)
    elif "python" in text or "torchrun" in text or "accelerate" in text or "deepspeed" in text:
        yield from _in_page(path, text, quoted=name.endswith(".ipynb"))


def _in_script(path: str, text: str, script: BuildScript) -> Iterator[Launch]:
    """Each command of a shell script, with the other programs of the script left out."""
    lines, whole = script.text.split("\n"), tuple(text.split("\n"))
    programs = [
        each
        for each in commands_of(lines)
        if not _SETS.match(each.text) and (" -" in each.text or _PROGRAM.search(each.text))
    ]
    for command in [each for each in programs if _PROGRAM.search(each.text)][: MOST_LAUNCHES * 4]:
        others = {number for each in programs if each is not command for _, number in each.lines}
        alone = "\n".join("" if number in others else line for number, line in enumerate(lines, 1))
        used = set(re.findall(r"\w+", command.text))
        for array in reversed(list(_ARRAY.finditer(alone))):
            if array[1] not in used:
                alone = alone[: array.start()] + "\n" * array[0].count("\n") + alone[array.end() :]
        line, shown = command.lines[0][1], command.text.strip()
        yield Launch(path=path, line=line, code=alone, lines=whole, shown=shown, variables=script.variables)


def _in_page(path: str, text: str, *, quoted: bool) -> Iterator[Launch]:
    """The lines of a page, a comment or a notebook's cell that are a command. ``quoted``: each is a text of JSON."""
    lines = text.split("\n")
    whole, number = tuple(lines), 0
    while number < len(lines):
        found = _LINE.match(_plain(lines[number][:4000], quoted=quoted))
        number += 1
        if found is None:
            continue
        first, line = number, found["line"]
        parts = [" " * found.start("line") + _joint(line)]
        while parts[-1].endswith("\\") and number < len(lines) and number - first < MOST_CONTINUED:
            more = _plain(lines[number][:4000], quoted=quoted)
            parts.append(_joint(re.sub(r"^[\s#>]+", lambda each: " " * len(each[0]), more)))
            number += 1
        shown = " ".join(each.rstrip("\\").strip() for each in parts)
        if not _OPEN.search(shown):
            yield Launch(path=path, line=first, code="\n".join(parts), lines=whole, shown=shown, alone=True)


def _joint(line: str) -> str:
    """A line as a shell has it: one that goes on, in any shell or in a text of Python, ends in one backslash."""
    code = line.rstrip().rstrip("\"'") if line.rstrip().endswith(('\\"', "\\'")) else line.rstrip()
    goes_on = code.endswith(("\\", " `", " ^"))
    return f"{code.rstrip('`^').rstrip(chr(92)).rstrip()} \\" if goes_on else code.rstrip("`")


def _plain(line: str, *, quoted: bool) -> str:
    """A line of a notebook's source without the quotes and escapes of JSON; any other line as it is."""
    if not quoted:
        return line
    found = re.match(r"\s*(?:\"source\":\s*\[?\s*)?\"(.*?)(?:\\n)?\"\]?,?\s*$", line)
    return "" if found is None else found[1].replace("\\\\", "\\").replace('\\"', '"')


def started_module(command: str, word: str) -> bool:
    """Whether a word of a command is the module that Python runs: ``python -m WORD``."""
    return re.search(rf"\s-m\s+{re.escape(word)}(?=\s|$)", command) is not None


def _is_of(command: str, script: str, where: str, *, own: bool) -> bool:
    """Whether a command runs the script. Both paths count from the top of the repository; ``where``: the page's.

    ``own``: it stands in the script itself, which may have been moved since.
    """
    command = re.sub(r"\\(?=[\w.])", "/", command)
    started = _PROGRAM.search(command)
    named = None if started is None else PROGRAM.search(command[: started.end() + 2000], started.end() - 1)
    if named is None:
        return False
    plain = re.sub(r"^.*\$[{(]?\w+[)}]?/|^\./", "", named[0].strip())
    path = f"{named[2].replace('.', '/')}.py" if named[2] else plain
    if own and path.rpartition("/")[2] == script.rpartition("/")[2]:
        return True
    if "/" in path:
        return script == path or script.endswith(f"/{path}")
    return script == os.path.normpath(os.path.join(where, path)).replace(os.sep, "/")
