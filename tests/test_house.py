"""How the package is divided into rooms, and which room may ask which: held over every import, wherever it stands.

A room is a folder or a module right below the package. An import within a function and one for a type checker alone
count like any other, and so does a module that is named in a string to be imported by it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from memcheck.frameworks.registry import FOLDERS, TRAINERS
from tests.sources import statements

PACKAGE = "memcheck"

LEVELS: tuple[set[str], ...] = (
    {"errors", "record"},
    {"edge"},
    {"plan"},
    {"catalog"},
    {"models"},
    {"autograd"},
    {"families"},
    {"job"},
    {"accounts"},
    {"frameworks"},
    {"memory"},
    {"timing"},
    {"rules"},
    {"config"},
    {"configs"},
    {"judge"},
    {"report"},
    {"what_if"},
    {"verify"},
    {"why"},
    {"guard"},
    {"live"},
    {"api", "cli"},
)
"""Every room, those that know least first: an arrow only points to an earlier level."""

ENTRIES = {"__init__": "the version, which every room may ask for", "__main__": "starts the command line"}
"""Modules beside the rooms."""

MOST_FOLDERS = 21
"""As many as one can keep in mind."""

ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "record": set(),
    "edge": {"record"},
    "plan": {"edge", "errors", "record"},
    "catalog": {"edge", "errors", "plan", "record"},
    "models": {"edge", "errors", "record"},
    "autograd": {"errors", "models", "record"},
    "families": {"autograd", "catalog", "edge", "errors", "models", "plan", "record"},
    "job": {"autograd", "catalog", "edge", "errors", "families", "models", "plan", "record"},
    "accounts": {"autograd", "job", "models", "record"},
    "frameworks": {"accounts", "autograd", "edge", "errors", "families", "job", "models", "record"},
    "memory": {"accounts", "autograd", "catalog", "edge", "errors", "frameworks", "job", "models", "record"},
    "timing": {"accounts", "autograd", "catalog", "errors", "frameworks", "job", "memory", "models", "record"},
    "rules": {
        "accounts",
        "autograd",
        "catalog",
        "edge",
        "errors",
        "frameworks",
        "job",
        "memory",
        "models",
        "plan",
        "record",
        "timing",
    },
    "config": {"accounts", "catalog", "edge", "errors", "plan", "record", "rules"},
    "configs": {
        "catalog",
        "config",
        "edge",
        "errors",
        "families",
        "frameworks",
        "job",
        "memory",
        "models",
        "plan",
        "record",
        "rules",
    },
    "judge": {"config", "configs", "edge", "errors", "frameworks", "job", "memory", "plan", "rules"},
    "report": {"accounts", "edge", "errors", "job", "memory", "plan", "record", "rules"},
    "what_if": {
        "accounts",
        "catalog",
        "config",
        "configs",
        "edge",
        "errors",
        "frameworks",
        "job",
        "judge",
        "memory",
        "models",
        "plan",
        "record",
        "report",
        "rules",
        "timing",
    },
    "verify": {
        "accounts",
        "autograd",
        "catalog",
        "configs",
        "edge",
        "errors",
        "families",
        "frameworks",
        "job",
        "judge",
        "memory",
        "models",
        "plan",
        "record",
        "report",
        "rules",
    },
    "why": {
        "accounts",
        "autograd",
        "catalog",
        "configs",
        "edge",
        "errors",
        "families",
        "frameworks",
        "job",
        "judge",
        "memory",
        "models",
        "plan",
        "record",
        "report",
        "rules",
        "verify",
        "what_if",
    },
    "guard": {"catalog", "config", "configs", "edge", "errors", "judge", "memory", "record", "report", "rules"},
    "live": {
        "accounts",
        "catalog",
        "config",
        "configs",
        "edge",
        "errors",
        "job",
        "judge",
        "memory",
        "plan",
        "record",
        "report",
        "rules",
        "what_if",
        "why",
    },
    "api": {"config", "configs", "errors", "judge", "plan", "report", "rules", "what_if"},
    "cli": {
        "accounts",
        "catalog",
        "config",
        "configs",
        "edge",
        "errors",
        "families",
        "frameworks",
        "guard",
        "job",
        "judge",
        "live",
        "memory",
        "plan",
        "record",
        "report",
        "rules",
        "verify",
        "what_if",
        "why",
    },
}
"""The rooms that each room imports."""

ENGINES = ("torch", "transformers", "megatron", "nanotron")
"""Folders with a row of their own; every other framework may import torch's and transformers'."""
FRAMEWORKS: dict[str, set[str]] = {
    "torch": set(),
    "transformers": {"torch"},
    "megatron": {"torch"},
    "nanotron": {"megatron"},
    **{folder: {"torch", "transformers"} for folder in (FOLDERS | TRAINERS).values() if folder not in ENGINES},
}
"""The folders of frameworks that each of them may import, in addition to itself and the modules that all share."""

NOT_YET = {
    "torch/end_units.py": {"transformers"},
    "torch/profile.py": {"transformers"},
    "torch/units.py": {"transformers"},
}
"""Files that still import a folder of frameworks that they should not know. The list may only become shorter."""

NAMED = re.compile(rf"{PACKAGE}(\.\w+)+\.?")
"""A module's name, or its beginning."""


def modules(root: Path) -> dict[str, str]:
    """Every file of the package by the name of its module."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts)
        found[name] = path.read_text(encoding="utf-8")
    return found


def imported(source: str) -> Iterator[str]:
    """Names of the package's modules, or of what is in them, that a module imports."""
    for node in statements(source):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, "the package imports by whole names"
            if node.module == PACKAGE:
                yield from (f"{PACKAGE}.{alias.name}" for alias in node.names)
            elif node.module is not None and node.module.startswith(f"{PACKAGE}."):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] == PACKAGE)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAMED.fullmatch(node.value):
            yield node.value


def arrows(sources: dict[str, str]) -> dict[tuple[str, str], set[str]]:
    """Pairs of rooms of which the first imports the second, with the modules that do."""
    rooms = {name.split(".")[1] for name in sources}
    found: dict[tuple[str, str], set[str]] = {}
    for name, source in sources.items():
        own = name.split(".")[1]
        for other in imported(source):
            room = f"{other}.".split(".")[1]
            room = room if room in rooms else "__init__"
            if room != own:
                found.setdefault((own, room), set()).add(name)
    return found


@pytest.fixture(scope="module")
def sources(root: Path) -> dict[str, str]:
    """The package's modules."""
    return modules(root)


@pytest.fixture(scope="module")
def found(sources: dict[str, str]) -> dict[tuple[str, str], set[str]]:
    """The arrows between rooms, those from and to what is beside the rooms left out."""
    return {pair: names for pair, names in arrows(sources).items() if not ENTRIES.keys() & set(pair)}


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Nodes that lie on a cycle or between two; none if there is no cycle."""
    left = {node: set(others) for node, others in edges.items()}
    while True:
        ends = {node for node in left if not left[node] & left.keys()}
        ends |= {node for node in left if not any(node in others for others in left.values())}
        if not ends:
            return sorted(left)
        left = {node: others for node, others in left.items() if node not in ends}


def test_every_file_is_in_a_known_room(sources: dict[str, str]) -> None:
    """A new folder or module right below the package is named in the table, with what it may import."""
    rooms = {name.split(".")[1] for name in sources}
    assert rooms == ARROWS.keys() | ENTRIES.keys()
    assert {room for level in LEVELS for room in level} == ARROWS.keys()


def test_there_are_few_folders(root: Path) -> None:
    """The package can be read as a list of folders that fits into one look."""
    folders = {path.parent for path in (root / PACKAGE).glob("*/__init__.py")}
    assert len(folders) <= MOST_FOLDERS


def test_a_room_imports_what_the_table_says(found: dict[tuple[str, str], set[str]]) -> None:
    """No import leads into a room that the table does not name."""
    assert {f"{a} -> {b}": names for (a, b), names in found.items() if b not in ARROWS[a]} == {}


def test_every_arrow_of_the_table_is_drawn(found: dict[tuple[str, str], set[str]]) -> None:
    """An arrow that nothing needs any more leaves the table."""
    assert [
        f"{room} -> {other}" for room, others in ARROWS.items() for other in others if (room, other) not in found
    ] == []


def test_arrows_point_to_earlier_levels() -> None:
    """The table itself has no way back, so that no two rooms can need one another."""
    level = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
    assert [f"{a} -> {b}" for a, others in ARROWS.items() for b in others if level[b] >= level[a]] == []
    assert cycle(ARROWS) == []


def test_what_all_may_ask_asks_nobody(sources: dict[str, str]) -> None:
    """The package's own module imports nothing of it but, when they are asked for, the API and its errors."""
    assert {name.split(".")[1] for name in imported(sources[f"{PACKAGE}.__init__"])} == {"api", "errors"}


def test_a_framework_knows_no_other(sources: dict[str, str]) -> None:
    """A folder of frameworks imports itself, the modules that all share, and what the table says."""
    wrong: dict[str, set[str]] = {}
    inside = f"{PACKAGE}.frameworks"
    for name, source in sources.items():
        folder = name.removeprefix(f"{inside}.").partition(".")[0]
        if folder in FRAMEWORKS and name.startswith(f"{inside}."):
            others = {other.removeprefix(f"{inside}.").partition(".")[0] for other in imported(source)}
            far = (others & FRAMEWORKS.keys()) - FRAMEWORKS[folder] - {folder}
            if far:
                wrong[name.removeprefix(f"{inside}.").replace(".", "/") + ".py"] = far
    assert wrong == NOT_YET


def test_every_framework_is_in_the_table(root: Path) -> None:
    """A new folder of frameworks says what it imports, and the table has no way back."""
    assert {path.parent.name for path in (root / PACKAGE / "frameworks").glob("*/__init__.py")} == FRAMEWORKS.keys()
    assert cycle(FRAMEWORKS) == []


@pytest.mark.parametrize(
    "line",
    [
        "import memcheck.b",
        "import memcheck.b.c as c",
        "from memcheck import b",
        "from memcheck.b import c",
        "from memcheck.b.c import D",
        "def f() -> None:\n    from memcheck.b import c",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from memcheck.b import c",
        "class C:\n    def m(self) -> None:\n        import memcheck.b",
        'from importlib import import_module\nimport_module("memcheck.b.c")',
        'module = import_module(f"memcheck.b.{name}")',
    ],
)
def test_every_import_is_seen(line: str) -> None:
    """Whole modules, names of them, in functions, for a type checker, and by their names in strings."""
    assert arrows({"memcheck.a.x": line, "memcheck.b": ""}) == {("a", "b"): {"memcheck.a.x"}}


def test_what_is_no_import_is_left_alone() -> None:
    """Other packages, the room itself, and sentences that name a module draw no arrow; the version is the package's."""
    source = 'import memcheckers.b\nfrom memcheck.a import y\n"""See memcheck.b for more."""\n'
    assert arrows({"memcheck.a.x": source, "memcheck.b": ""}) == {}
    assert arrows({"memcheck.a": "from memcheck import __version__"}) == {("a", "__init__"): {"memcheck.a"}}


def test_every_cycle_is_found() -> None:
    """Two rooms that need one another, and a way back over others; what merely leads there is not on it."""
    assert cycle({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == ["a", "b"]
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == ["a", "b", "c"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
