"""What a pattern of the input ``paths`` stands for in the workspace, whose folders and links a pull request chooses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import filter as fitting
from glob import has_magic

STDIN = "-"
"""What memcheck would read its standard input for."""


def expanded(pattern: str, folder: str) -> list[str]:
    """The files and folders that fit, sorted; the pattern itself where none does, so that memcheck names it.

    As :func:`glob.glob` has it, but for one thing: a wildcard goes through no link, which may lead to the whole disk or
    in a circle. Where a path is written out, links are followed as far as memcheck follows them.
    """
    start, parts = ("/", pattern.lstrip("/")) if pattern.startswith("/") else ("", pattern)
    found = sorted(set(_matching(folder, start, parts.split("/")))) if has_magic(pattern) else []
    return [os.path.join(os.curdir, path) if path == STDIN else path for path in found or [pattern]]


def _matching(folder: str, start: str, parts: list[str]) -> Iterator[str]:
    part, *rest = parts
    if part == "**":
        while rest[:1] == [part]:  # means the same, and would search each folder from each above it
            rest = rest[1:]
        below = [start]
        for at in below:  # which grows meanwhile: folders may lie deeper than Python's stack
            yield from _matching(folder, at, rest) if rest else [at] * bool(at)
            for name, is_folder in _entries(folder, at, "*"):
                if is_folder:
                    below.append(os.path.join(at, name))
                elif not rest:
                    yield os.path.join(at, name)
    elif has_magic(part):
        for name, is_folder in _entries(folder, start, part):
            if not rest:
                yield os.path.join(start, name)
            elif is_folder:
                yield from _matching(folder, os.path.join(start, name), rest)
    else:
        path = os.path.join(start, part)
        if rest:
            yield from _matching(folder, path, rest)
        elif os.path.lexists(os.path.join(folder, path)):
            yield path


def _entries(folder: str, start: str, pattern: str) -> list[tuple[str, bool]]:
    """Names in a folder that fit, hidden ones only where the pattern is for them; with whether each is a folder."""
    try:
        with os.scandir(os.path.join(folder, start)) as found:
            kinds = {each.name: each.is_dir(follow_symlinks=False) for each in found}
    except OSError:  # no folder, or none that may be read: a path that is written out is then refused by memcheck
        return []
    names = (name for name in kinds if pattern.startswith(".") or not name.startswith("."))
    return [(name, kinds[name]) for name in fitting(names, pattern)]
