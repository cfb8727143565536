"""What a search of a folder leaves out: folders whose names start with a dot, ``node_modules``, links to folders.

A plan in such a folder can be run like any other. It is named, and it fails where no plan may avoid the check.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from memcheck.config.find import SUFFIXES, is_skipped
from memcheck.edge.opener import is_inside, read_start, repository
from memcheck.plan.sniff import looks_like_plan
from memcheck.plan.text import MAX_BYTES
from memcheck.record import Record
from memcheck.rules.result import Unreadable

GIT = ".git"
"""Git's own folder: nothing in it is a file of the repository."""
_TOOLS = ("CACHEDIR.TAG", "pyvenv.cfg")
"""What marks a folder as a cache or a virtual environment."""
MOST, MOST_STRICT = 10_000, 200_000
"""Entries of such folders that are looked at, by a usual check and by one that fails for a plan in there."""
MOST_NAMED = 1000
"""Plans that are reported one by one; further ones are not named."""
WHY = "it is a plan in a folder that the search leaves out"
HELP = "move it, or name its folder in the paths to check"


class Unseen(Record):
    """The plans that were found in folders that a search leaves out."""

    plans: tuple[str, ...] = ()
    """Files that are plans, by their paths, in order."""
    left: tuple[str, ...] = ()
    """Folders that were not looked at to the end: too many files, or a link out of the repository."""


class UnseenPlans:
    """What the searches of a run leave out."""

    def __init__(self, strict: Callable[[str], bool]) -> None:
        """``strict``: whether a plan that a search leaves out fails, by the folder that was searched last above it."""
        self._strict = strict
        self.found = Unseen()

    def left_out(self, skipped: Sequence[str], searched: Sequence[str]) -> list[Unreadable]:
        """Look into the folders that a search left out; what fails for what it holds."""
        seen = [os.path.realpath(folder) for folder in searched]
        hard = [each for each in skipped if self._strict(os.path.dirname(each) or ".")]
        others = set(skipped) - set(hard)
        failing = look(hard, seen, MOST_STRICT)
        found = look([each for each in others if not _is_tools(each)], seen, MOST)
        self.found = Unseen(plans=found.plans, left=(*failing.left, *found.left))
        return [Unreadable(path, WHY, refused=True, help=HELP) for path in failing.plans[:MOST_NAMED]]


def look(folders: Sequence[str], seen: Sequence[str], most: int) -> Unseen:
    """The plans in some folders. ``seen``: real paths of folders that were searched, to which a link may lead."""
    plans: list[str] = []
    left: list[str] = []
    known: set[str] = set()
    for folder in sorted(folders):
        real = os.path.realpath(folder)
        if os.path.islink(folder):
            root, in_git = repository(os.path.realpath(os.path.dirname(folder) or "."))
            here = os.path.realpath(os.curdir)
            root = here if not in_git and is_inside(root, here) else root
            if any(_was_searched(real, each) for each in seen):
                continue
            if not is_inside(real, root):
                left.append(folder)
                continue
        if real in known:
            continue
        known.add(real)
        count = 0
        for path in _files(folder):
            count += 1
            if count > most:
                left.append(folder)
                break
            if path and _is_plan(path):
                plans.append(path.replace(os.sep, "/"))
        most -= count
    return Unseen(plans=tuple(plans), left=tuple(left))


def _was_searched(real: str, searched: str) -> bool:
    """Whether a search of a folder met another one on its way."""
    if not is_inside(real, searched):
        return False
    return not any(is_skipped(part) for part in os.path.relpath(real, searched).split(os.sep) if part != os.curdir)


def _is_tools(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for name in _TOOLS)


def _files(folder: str) -> Iterator[str]:
    """YAML files below a folder; empty for every other entry. Links to folders are not followed."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != GIT:
                    waiting.append(entry.path)
                yield ""
            else:
                yield entry.path if entry.name.lower().endswith(SUFFIXES) else ""


def _is_plan(path: str) -> bool:
    try:
        return looks_like_plan(read_start(path, MAX_BYTES))
    except OSError:
        return False
