"""Docstrings of the package stand alone: a hover shows one without its neighbours."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

FIRST_WORDS = r"\s*(The same|Of|That of|Those|Kept|As|So|It|Its|They|Their|Likewise|Such)\b"
"""Words that lean on a docstring above, or on the name."""
LEANING = re.compile(FIRST_WORDS)
QUOTED = re.compile('"""' + FIRST_WORDS)


def docstrings(source: str) -> Iterator[str]:
    """Every string that stands as a statement: of modules, classes and functions, and below constants and fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def leaning(path: Path) -> list[str]:
    """The docstrings of a file that begin with a forbidden word; parsed only where some string does."""
    source = path.read_text(encoding="utf-8")
    return [each for each in docstrings(source) if LEANING.match(each)] if QUOTED.search(source) else []


def test_docstrings_stand_alone(root: Path) -> None:
    """None begins with words that mean nothing where the docstring is read by itself."""
    found = {path.relative_to(root).as_posix(): leaning(path) for path in (root / "memcheck").rglob("*.py")}
    assert {name: them for name, them in found.items() if them} == {}


def test_every_kind_of_docstring_is_seen() -> None:
    """Modules, classes, methods, constants and fields are read; longer words with the same letters are not meant."""
    source = (
        '"""So."""\nX = 1\n"""Of it."""\nclass C:\n    """The same."""\n    y: int\n    """Kept for."""\n'
        '    def m(self):\n        """That of x."""\ndef f():\n    """Offsets."""\n    return "Of"\n'
        'Y = 2\n"""Its number."""\nZ = 3\n"""Items."""\nP = 4\n"""Likewise."""\n'
    )
    assert sorted(each for each in docstrings(source) if LEANING.match(each)) == [
        "Its number.",
        "Kept for.",
        "Likewise.",
        "Of it.",
        "So.",
        "That of x.",
        "The same.",
    ]
