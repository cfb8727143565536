"""CONTRIBUTING.md's map of the package, and what each room says of itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.test_house import LEVELS

ORDER = [room for level in LEVELS for room in sorted(level)]


def test_the_map_shows_the_order_that_imports_follow(root: Path) -> None:
    """The rooms stand in the map as the table of arrows has them, each folder with a line below it."""
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"^    (errors, .*(?:\n    .+)*)", page, re.MULTILINE)
    assert re.findall(r"\w+", drawn) == ORDER
    folders = {room for room in ORDER if (root / "memcheck" / room).is_dir()}
    assert set(re.findall(r"^\| `memcheck/(\w+)` \|", page, re.MULTILINE)) == folders


def test_every_room_says_what_it_holds(root: Path) -> None:
    """The docstring of a room is where one looks first."""
    silent = [
        path.parent.name
        for path in (root / "memcheck").glob("*/__init__.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []
