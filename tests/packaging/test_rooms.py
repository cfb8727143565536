"""The rooms of the package stand in one order: an import points to a room before its own, or stays within."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ORDER = (
    "errors record finding edge plan catalog models job autograd accounts frameworks memory timing rules result "
    "config configs check report what_if review verify cli"
).split()
"""Modules and folders directly below ``memcheck``."""

OUTSIDE = {"__init__", "__main__"}
"""The version, which any room reads, and the start of the program, which no room does."""


def imports(tree: ast.Module) -> Iterator[str]:
    """The rooms that a module imports from, inside functions and for type checkers, too."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "memcheck":
            names = [f"memcheck.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            first, _, rest = name.partition(".")
            if first == "memcheck" and (room := rest.partition(".")[0]) in ORDER:
                yield room


def rooms(root: Path) -> Iterator[tuple[str, Path]]:
    """Every module of the package with the name of its room."""
    for path in sorted((root / "memcheck").rglob("*.py")):
        room = path.relative_to(root / "memcheck").parts[0].removesuffix(".py")
        if room not in OUTSIDE:
            yield room, path


def test_every_import_points_to_an_earlier_room(root: Path) -> None:
    """Nothing is known of what comes later, not even inside a function: whoever needs it is handed it."""
    back = [
        f"{path.relative_to(root)} imports {other}"
        for room, path in rooms(root)
        for other in imports(ast.parse(path.read_text(encoding="utf-8")))
        if ORDER.index(other) > ORDER.index(room)
    ]
    assert back == []


def test_every_room_has_a_place_and_says_what_it_holds(root: Path) -> None:
    """A new folder is put into the order, and its docstring says what it is for."""
    assert {room for room, _ in rooms(root)} == set(ORDER)
    folders = [path for path in (root / "memcheck").iterdir() if (path / "__init__.py").exists()]
    silent = [path.name for path in folders if not ast.get_docstring(ast.parse((path / "__init__.py").read_text()))]
    assert silent == []


def test_the_map_shows_this_order(root: Path) -> None:
    """CONTRIBUTING.md has the rooms in their order, each with a line in its table."""
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (drawn,) = re.findall(r"^    (errors, .*(?:\n    .+)*)", page, re.MULTILINE)
    assert re.findall(r"\w+", drawn) == ORDER
    folders = {room for room in ORDER if (root / "memcheck" / room).is_dir()}
    assert set(re.findall(r"^\| `memcheck/(\w+)` \|", page, re.MULTILINE)) == folders


def test_imports_are_seen_wherever_they_stand() -> None:
    """At the top, in a function, for a type checker, of a package or of one of its modules."""
    source = (
        "from memcheck.plan.types import Plan\nimport memcheck.job.types\nimport json\nfrom memcheck import __version__\n"
        "if TYPE_CHECKING:\n    from memcheck.cli import app\ndef f():\n    from memcheck import rules\n"
    )
    assert sorted(imports(ast.parse(source))) == ["cli", "job", "plan", "rules"]
