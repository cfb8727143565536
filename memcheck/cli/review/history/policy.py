"""Configurations and baselines as an earlier commit has them, so that a branch cannot loosen what judges it."""

from __future__ import annotations

import errno
import os
import weakref

from memcheck.cli.review.baseline import LARGEST, AcceptedFinding, entries_in, read_entries
from memcheck.cli.review.history.checkout import Tree
from memcheck.cli.review.history.git import Base, inside_of, open_commit
from memcheck.config.find import Files
from memcheck.edge.opener import RefusedError
from memcheck.errors import ConfigurationError, UsageError

OPTION = "--config-from-ref"


class CommittedFiles(Files):
    """The files of one commit under their paths in the working tree; nothing of the working tree itself is read."""

    def __init__(self, base: Base) -> None:
        self.origin = f" of {base.label}"
        self._base = base
        self._tree = Tree(base)
        weakref.finalize(self, self._tree.close)

    def holds(self, path: str) -> bool:
        """Whether the commit has a file or a link under this name."""
        return self._inside(path) in self._tree

    def read(self, path: str, limit: int) -> bytes:
        """Every byte of a file.

        Raises:
            FileNotFoundError: the commit has no such file, or a link to none of its files.
            RefusedError: the file is larger than ``limit`` bytes.
            UsageError: git cannot read the object.
        """
        data = self._tree.read(self._inside(path), limit)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, f"there is none in {self._base.label}", path)
        if len(data) > limit:
            raise RefusedError(path, f"it is larger than {limit:,} bytes")
        return data

    def is_top(self, folder: str) -> bool:
        """Whether the folder is the repository's: a submodule of the branch ends no search."""
        return folder == self._base.root

    def _inside(self, path: str) -> str:
        """The path from the root, through the links that the commit has: those of the working tree lead nowhere."""
        full = os.path.abspath(path)
        if not full.startswith(self._base.root.rstrip(os.sep) + os.sep):  # named through a link above the repository
            return self._tree.place(inside_of(self._base, path, OPTION))
        return self._tree.place(os.path.relpath(full, self._base.root).replace(os.sep, "/"))


def committed_files(ref: str) -> CommittedFiles:
    """The files of the commit that ``ref`` names, of a branch its tip.

    Raises:
        UsageError: no repository, or no such ref.
    """
    return CommittedFiles(open_commit(ref, OPTION))


Accepted = dict[str, set[AcceptedFinding]]
"""Entries by the path of their plan, from the repository's root."""


class Acceptances:
    """The baselines of one run; each is read once, as it is and as it was."""

    def __init__(self, base: Base, tree: Tree) -> None:
        self._base = base
        self._tree = tree
        self._changed: dict[str, set[str] | None] = {}

    def touches(self, file: str, inside: str) -> bool:
        """Whether a baseline file accepts something else of a plan (its path from the root) than it did."""
        if file not in self._changed:
            self._changed[file] = self._differing(file)
        changed = self._changed[file]
        return changed is None or inside in changed

    def _differing(self, file: str) -> set[str] | None:
        """Plans with other entries than at the base; None where what was accepted cannot be known."""
        try:
            place = inside_of(self._base, file)
        except UsageError:  # outside of the repository
            return None
        data = self._tree.read(place, LARGEST)
        try:
            before = _by_plan(entries_in(data, file), place) if data is not None else {}
        except ConfigurationError:
            return None
        now = _by_plan(read_entries(file), place) if os.path.exists(file) else {}
        return {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}


def _by_plan(entries: tuple[AcceptedFinding, ...], place: str) -> Accepted:
    found: Accepted = {}
    for entry in entries:
        inside = os.path.normpath(os.path.join(os.path.dirname(place), entry.path)).replace(os.sep, "/")
        found.setdefault(inside, set()).add(entry)
    return found
