"""What classes and modules are called, and how records are made, read off the package's syntax trees."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import statements

BY_PLACE = {
    "Option": "names, help, what stands for the value and what reads it, in the order of a help page",
    "Span": "line, column, end line and end column, as every editor orders them",
}
"""Records of more than three fields that may be made by place, each with its reason."""

TO_CONVERT = {
    "memcheck/accounts/ranks.py",
    "memcheck/accounts/program.py",
    "memcheck/frameworks/megatron/inventory.py",
    "memcheck/frameworks/megatron/ranks.py",
    "memcheck/frameworks/megatron/step.py",
    "memcheck/frameworks/torch/inventory.py",
    "memcheck/frameworks/torch/load_and_save.py",
    "memcheck/frameworks/torch/rank_steps.py",
    "memcheck/frameworks/torch/recording.py",
    "memcheck/frameworks/torch/resident.py",
    "memcheck/frameworks/torch/step.py",
}
"""Files in which records are still made by place. The list may only become shorter."""

PREPOSITIONS = frozenset(
    [
        "about",
        "above",
        "after",
        "against",
        "around",
        "before",
        "behind",
        "below",
        "beside",
        "beyond",
        "by",
        "for",
        "from",
        "in",
        "into",
        "of",
        "off",
        "on",
        "onto",
        "over",
        "through",
        "to",
        "under",
        "upon",
        "with",
    ]
)

Nodes = dict[str, list[ast.ClassDef | ast.Call]]
"""Classes and calls by the file that has them."""


def nodes(source: str) -> list[ast.ClassDef | ast.Call]:
    """Every class and call of a module, nested ones included."""
    return [node for node in statements(source) if isinstance(node, ast.ClassDef | ast.Call)]


@pytest.fixture(scope="module")
def package(root: Path) -> Nodes:
    """What every module of the package defines and calls, by its path under the checkout."""
    paths = sorted((root / "memcheck").rglob("*.py"))
    return {path.relative_to(root).as_posix(): nodes(path.read_text(encoding="utf-8")) for path in paths}


def classes(package: Nodes) -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class with the file that defines it."""
    return ((path, node) for path, found in package.items() for node in found if isinstance(node, ast.ClassDef))


def twice(package: Nodes) -> dict[str, list[str]]:
    """Class names with more than one definition, and the files that hold them."""
    found = defaultdict(list)
    for path, node in classes(package):
        found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def records(package: Nodes) -> set[str]:
    """Names of the classes whose fields have an order."""
    bases = {"Record", "NamedTuple"}
    return {node.name for _, node in classes(package) if any(ast.unparse(base) in bases for base in node.bases)}


def by_place(package: Nodes) -> dict[str, list[str]]:
    """Records made with more than three values by place, or an unknown number beside others, by file."""
    names = records(package) - BY_PLACE.keys()
    found = defaultdict(list)
    for path, them in package.items():
        for node in them:
            if isinstance(node, ast.Call) and len(node.args) > 3 and called(node) in names:
                found[path].append(f"{path}:{node.lineno}: {called(node)}")
    return found


def called(node: ast.Call) -> str:
    """The last part of what is called; empty where it has no name."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node.func, ast.Name | ast.Attribute) else ""


def test_a_class_name_has_one_meaning(package: Nodes) -> None:
    """No two modules define a class of one name."""
    assert twice(package) == {}


def test_records_of_many_fields_are_made_by_name(package: Nodes) -> None:
    """No record is made with more than three values whose meaning is their place alone."""
    assert [line for path, lines in by_place(package).items() if path not in TO_CONVERT for line in lines] == []


def test_converted_files_leave_the_list(package: Nodes) -> None:
    """A file that makes its records by name is held to it from then on."""
    assert by_place(package).keys() >= TO_CONVERT


def test_modules_are_named_by_nouns(package: Nodes) -> None:
    """No module's name is a preposition, which says where something lies and not what it is."""
    assert [path for path in package if Path(path).stem in PREPOSITIONS] == []


def test_what_is_looked_for_is_seen() -> None:
    """Both kinds of record are known, calls by place are counted under any import, and nested classes are seen."""
    package: Nodes = {
        "a.py": nodes("class A(Record):\n    x: int\nclass B(NamedTuple):\n    x: int\nA(1, 2, 3, 4)\nA(1, 2, 3)"),
        "b.py": nodes("class C:\n    class B: pass\nm.B(1, 2, 3, *more)\nC(1, 2, 3, 4)\nA(1, x=2, y=3, z=4)"),
    }
    assert twice(package) == {"B": ["a.py", "b.py"]}
    assert by_place(package) == {"a.py": ["a.py:5: A"], "b.py": ["b.py:3: B"]}
