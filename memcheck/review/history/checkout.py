"""Earlier plans on disk, with every file that decides them and nothing else, so that they are read like any plan."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable

from memcheck.config.find import LARGEST
from memcheck.edge.libyaml import yaml
from memcheck.plan.compose import ComposeError, Composer
from memcheck.plan.text import decode
from memcheck.review.history.depends import configuration_files, named
from memcheck.review.history.tree import Tree


def lay_out(tree: Tree, plans: list[str], folder: str) -> None:
    """Write earlier plans into an empty folder at their paths from the root, with what they name, and so on.

    What is missing in the tree stays missing: reading the plan then says so.
    """
    # Plans may not extend beyond the repository: the folder has to look like one.
    os.mkdir(os.path.join(folder, ".git"))
    seen = {*plans, *(name for plan in plans for name in configuration_files(plan))}
    waiting = list(seen)
    while waiting:
        path = waiting.pop()
        data = tree.read(path, LARGEST)  # and one byte more, which says that it is too large
        if data is None:
            continue
        _write(folder, path, data)
        if not path.endswith((".toml", ".json")):
            for name in _names(path, data):
                inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
                if inside not in seen:
                    seen.add(inside)
                    waiting.append(inside)


def lay_out_files(tree: Tree, paths: Iterable[str], folder: str, limit: int) -> None:
    """Write single files, at their paths from the root; what is missing in the tree stays missing.

    A file of more than ``limit`` bytes is cut after ``limit + 1`` bytes.
    """
    for path in paths:
        data = tree.read(path, limit)
        if data is not None:
            _write(folder, path, data)


def _write(folder: str, path: str, data: bytes) -> None:
    target = os.path.join(folder, *path.split("/"))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(data)


def _names(path: str, data: bytes) -> set[str]:
    """What a plan file names; nothing beyond the place where it cannot be read."""
    text, finding = decode(path, data)
    found: set[str] = set()
    if finding is None:
        try:
            for document in Composer(text).documents():
                found |= named(document.values)
        except (ComposeError, yaml.YAMLError):
            pass
    return {name.replace(os.sep, "/") for name in found}
