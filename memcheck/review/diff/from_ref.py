"""Compares the working tree with an earlier commit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from tempfile import TemporaryDirectory

from memcheck.config.discover import SKIPPED_FOLDERS, STDIN, SUFFIXES, PlanFile, find_plans
from memcheck.config.find import Configurations
from memcheck.errors import ConfigurationError, UsageError
from memcheck.plan.sniff import looks_like_plan
from memcheck.plan.text import MAX_BYTES, read_bytes
from memcheck.result import Unreadable
from memcheck.review.baseline.file import LARGEST
from memcheck.review.diff.compare import Side
from memcheck.review.diff.sides import SideReader
from memcheck.review.history.changed import Changes
from memcheck.review.history.checkout import lay_out, lay_out_files
from memcheck.review.history.git import open_base
from memcheck.review.history.places import inside_of
from memcheck.review.history.tree import Tree


def sides_since(ref: str, paths: tuple[str, ...], sides: SideReader) -> tuple[list[Side], list[Side], int, str]:
    """Plans before, plans after, how many files did not change, and the commit in words.

    Only plans are judged whose files changed, on either side: the others cannot have moved.

    Raises:
        UsageError: the ref cannot be compared with.
    """
    if STDIN in paths:
        raise UsageError("--from-ref cannot be used with -", "what stdin holds has no earlier state in git")
    base = open_base(ref)
    with closing(Tree(base)) as tree, TemporaryDirectory(prefix="memcheck-") as folder:
        changes = Changes(base, tree, sides.baseline_of)
        touched: list[PlanFile | Unreadable] = []
        unchanged: set[str] = set()
        there = [path for path in paths if os.path.lexists(path) or not _earlier(tree, inside_of(base, path))]
        for found in find_plans(there):
            if isinstance(found, Unreadable) or changes.touches(found):
                touched.append(found)
            else:
                unchanged.add(inside_of(base, found.path))
        after = sides.of_files(touched, lambda path: path, lambda path: inside_of(base, path))
        before_files = [
            inside
            for inside in dict.fromkeys(each for path in paths for each in _earlier(tree, inside_of(base, path)))
            if inside not in unchanged
        ]
        lay_out(tree, before_files, folder)
        root = os.path.realpath(folder)
        lay_out_files(tree, _baselines(root, before_files), root, LARGEST)

        def inside(path: str) -> str:
            return os.path.relpath(path, root).replace(os.sep, "/")

        def shown(path: str) -> str:
            return os.path.relpath(os.path.join(base.root, inside(path)), os.path.realpath(".")).replace(os.sep, "/")

        before = sides.of_files(_files(root, before_files), shown, inside, sides.earlier_gates(shown))
    return before, after, len(unchanged), base.label


def _earlier(tree: Tree, path: str) -> list[str]:
    """The files of the tree that may be plans: the path itself, or YAML files below it, as a folder is searched."""
    if path in tree:
        return [path]
    found = []
    for each in tree.below(path):
        *folders, name = (each[len(path) + 1 :] if path else each).split("/")
        hidden = any(folder.startswith(".") or folder in SKIPPED_FOLDERS for folder in folders)
        if name.lower().endswith(SUFFIXES) and not hidden and looks_like_plan(tree.read(each, MAX_BYTES) or b""):
            found.append(each)
    return found


def _baselines(root: str, plans: list[str]) -> set[str]:
    """The baselines that the laid-out configurations name, from the root: they accepted what they accept there."""
    configurations = Configurations()
    found = set()
    for plan in plans:
        try:
            file = configurations.of(os.path.join(root, *plan.split("/"))).baseline
        except ConfigurationError:  # of no use any more: then today's settings count
            continue
        inside = os.path.relpath(os.path.realpath(file), root) if file else ".."
        if not inside.startswith(".."):
            found.add(inside.replace(os.sep, "/"))
    return found


def _files(root: str, names: list[str]) -> Iterator[PlanFile]:
    """The laid-out plans."""
    for name in sorted(names):
        path = os.path.join(root, *name.split("/"))
        yield PlanFile(path, read_bytes(path))
