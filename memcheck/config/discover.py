"""From the paths of a command line to the bytes of plan files."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from memcheck.edge.opener import RefusedError, begin_search, end_search, resolved
from memcheck.plan.text import MAX_BYTES, read_bytes
from memcheck.record import Record
from memcheck.result import Unreadable

SUFFIXES = (".yaml", ".yml")
CONFIG_SUFFIXES = (".json", ".toml", ".sh")
"""Suffixes of configs that are no YAML: looked at only where the project's configuration means them."""
SKIPPED_FOLDERS = {"node_modules", "__pycache__"}
"""Names of folders that a search skips, in addition to names that start with a dot."""
STDIN = "-"
LeftOut = Callable[[Sequence[str], Sequence[str]], Iterable[Unreadable]]
"""A function from the folders that a search left out, and those that it searched, to the problems to report."""


class PlanFile(Record):
    """One file to check: its path and its bytes."""

    path: str
    """The file's path as the user wrote it, with forward slashes. A file found in a folder begins with the folder."""
    data: bytes


class Candidate(Record):
    """One file that may hold plans."""

    file: PlanFile
    must_be_marked: bool
    """Whether the file is checked only if it has the mark of a plan: a top-level key ``memcheck``."""
    stdin: bool = False


def find_plans(
    paths: Sequence[str],
    *,
    skip_unmarked: bool = False,
    stdin_filename: str | None = None,
    configured: Callable[[str], bool] | None = None,
    unmarked: list[str] | None = None,
) -> Iterator[PlanFile | Unreadable]:
    """Every plan file of the paths, sorted and each once; paths that cannot be read come as :class:`Unreadable`.

    Folders are searched recursively for YAML files that carry the mark of a plan. A file that was named is taken
    whatever it holds, unless ``skip_unmarked``: then it must carry the mark too. Files are read one at a time.
    ``configured``: files in folders that are taken for what the project's configuration says of them, whatever they
    hold. ``unmarked`` takes the paths of files that look like plans and lack the mark.
    """
    found = find_candidates(paths, skip_unmarked=skip_unmarked, stdin_filename=stdin_filename, configured=configured)
    return plans_among(found, unmarked)


def plans_among(
    candidates: Iterable[Candidate | Unreadable], unmarked: list[str] | None = None
) -> Iterator[PlanFile | Unreadable]:
    """The files that are plans, or meant as such; see :func:`find_plans`."""
    for found in candidates:
        if isinstance(found, Unreadable):
            yield found
        else:
            if found.must_be_marked:
                from memcheck.plan.sniff import is_meant

                if not is_meant(*found.file, unmarked, has_more=not found.stdin):
                    continue
            yield found.file


def find_candidates(
    paths: Sequence[str],
    *,
    skip_unmarked: bool = False,
    stdin_filename: str | None = None,
    configured: Callable[[str], bool] | None = None,
    left_out: LeftOut | None = None,
) -> Iterator[Candidate | Unreadable]:
    """Every file of the paths that may hold plans, with its bytes; see :func:`find_plans`.

    ``left_out`` is told what the search does not look into, and gives what fails for that.
    """
    named: dict[str, bool] = {}
    skipped: list[str] = []
    stdin = False
    for path in paths:
        if path == STDIN:
            stdin = True
        elif os.path.isdir(path):
            try:
                resolved(path)
            except RefusedError as error:
                yield _unreadable(_shown(path), error)
                continue
            for found in walk(path, SUFFIXES if configured is None else (*SUFFIXES, *CONFIG_SUFFIXES), skipped=skipped):
                if isinstance(found, Unreadable):
                    yield found
                    continue
                shown = _shown(found)
                if configured is not None and configured(shown):
                    named.setdefault(shown, True)
                elif found.lower().endswith(SUFFIXES):
                    named.setdefault(shown, False)
        else:
            named[_shown(path)] = True
    if stdin:
        yield _read(stdin_filename or "<stdin>", must_be_marked=skip_unmarked, stdin=True)
    if skipped and left_out is not None:
        yield from left_out(skipped, [path for path in paths if path != STDIN and os.path.isdir(path)])
    begin_search()
    try:
        for path in sorted(named):
            yield _read(path, must_be_marked=skip_unmarked or not named[path])
    finally:
        end_search()


def _shown(path: str) -> str:
    """One spelling per file: ``./a.yaml`` and ``plans/../a.yaml`` are ``a.yaml``."""
    return os.path.normpath(path).replace(os.sep, "/")


def is_skipped(name: str) -> bool:
    """Whether a search leaves out folders of this name."""
    return name.startswith(".") or name in SKIPPED_FOLDERS


def walk(
    folder: str, suffixes: tuple[str, ...], *, shallow_first: bool = False, skipped: list[str] | None = None
) -> Iterator[str | Unreadable]:
    """Files with these suffixes below a folder; links to folders are not followed, so that no loop can arise.

    ``shallow_first``: the files of a folder before those of any folder inside it. ``skipped`` takes the folders, and
    links to folders, that are left out, but for git's own.
    """
    waiting = deque([folder])  # no recursion: folders may be deeper than the interpreter's stack
    while waiting:
        folder = waiting.popleft() if shallow_first else waiting.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name, reverse=not shallow_first)
        except OSError as error:
            yield _unreadable(_shown(folder), error)
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if not is_skipped(entry.name):
                    waiting.append(entry.path)
                elif skipped is not None and entry.name != ".git":
                    skipped.append(_shown(entry.path))
            elif entry.is_symlink() and os.path.isdir(entry.path):
                if skipped is not None:
                    skipped.append(_shown(entry.path))
            elif entry.name.lower().endswith(suffixes):
                yield entry.path  # a link to nowhere, a pipe or a device, too: that the user must be told


def _read(path: str, *, must_be_marked: bool, stdin: bool = False) -> Candidate | Unreadable:
    """One file, or stdin under a name."""
    try:
        data = sys.stdin.buffer.read(MAX_BYTES + 1) if stdin else read_bytes(path)
    except OSError as error:
        return _unreadable(path, error)
    return Candidate(PlanFile(path, data), must_be_marked, stdin)


def _unreadable(path: str, error: OSError) -> Unreadable:
    return Unreadable(path, error.strerror or str(error), isinstance(error, RefusedError))
