"""The package's own modules as syntax trees, for tests that hold the whole of it to something."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path


@cache
def texts(package: Path) -> dict[Path, str]:
    """The text of every module below a folder, in the order of their paths."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}


@cache
def statements(text: str) -> list[ast.AST]:
    """A module's imports, classes without what is in them, and calls, and the strings that may name another, wherever they stand in it.

    Kept, so that the tests that ask this of every module parse each of them once.
    """
    found = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom | ast.ClassDef | ast.Call)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("memcheck"))
    ]
    for node in found:
        if isinstance(node, ast.ClassDef):
            node.body = []  # or most of every tree would be kept with its classes
    return found


def trees(package: Path, words: Iterable[str]) -> Iterator[tuple[Path, ast.Module]]:
    """Modules in which one of some names or strings stands; no others are parsed, which takes most of such a test.

    What a tree has as a name or a string its text has, letter by letter.
    """
    wanted = tuple(words)
    for path, text in texts(package).items():
        if any(word in text for word in wanted):
            yield path, ast.parse(text)
