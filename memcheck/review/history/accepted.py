"""What a baseline accepted at an earlier commit, against what it accepts now. Imported only where one is configured."""

from __future__ import annotations

import os

from memcheck.errors import ConfigurationError, UsageError
from memcheck.review.baseline.file import LARGEST, AcceptedFinding, entries_in, read_entries
from memcheck.review.history.git import Base
from memcheck.review.history.places import inside_of
from memcheck.review.history.tree import Tree

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
