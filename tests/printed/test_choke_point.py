"""Text leaves through one place: no module but a few with a reason writes to a stream of its own."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.sources import trees

WRITES = {
    ("memcheck/edge/screen.py", "_write"): "the place itself",
    ("memcheck/cli/write.py", "_print"): "the place itself on stdout, behind `inert` and `document`",
    ("memcheck/__main__.py", "main"): "the version, a literal, before anything is imported",
    ("memcheck/cli/write.py", "_send"): "a report's file",
    ("memcheck/cli/write.py", "write_bug_report"): "a defect's file",
    ("memcheck/cli/init.py", "write_new"): "a new plan's file",
    ("memcheck/cli/replace.py", "_fill"): "a mended plan's file, or a report's",
    ("memcheck/cli/replace.py", "put_in_place"): "a report's file that cannot be replaced",
    ("memcheck/catalog/index.py", "main"): "the index's file",
    ("memcheck/configs/key_index.py", "main"): "the index's file",
    ("memcheck/cli/review/history/checkout.py", "_write"): "a file of another revision",
    ("memcheck/cli/review/history/checkout.py", "_object"): "a pipe to git",
    ("memcheck/verify/recording.py", "append"): "a recording's file",
    ("memcheck/guard/callback.py", "write_plan"): "the plan of a running job, where the caller wants it",
    ("memcheck/live/server.py", "_steps"): "steps of an answer to the page, as JSON, to its browser",
    ("memcheck/live/server.py", "_file"): "a file of the page, to its browser",
    ("memcheck/live/server.py", "_json"): "a reply to the page, as JSON, to its browser",
    ("memcheck/cli/kept.py", "keep"): "a kept verdict, in the user's cache",
    ("memcheck/configs/formats.py", "export_plan"): "a format's own function of that name",
    ("memcheck/configs/formats.py", "write"): "the function of that name in a format's writer",
}
"""Every function that calls a method named ``write``, and what it writes to."""
PRINTERS = {"print", "echo", "secho", "pager", "echo_via_pager", "print_exc", "print_exception", "excepthook"}


class Calls(ast.NodeVisitor):
    """Calls of a module, each with the function that it stands in."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.found: list[tuple[str, str]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.inside.append(node.name)
        self.generic_visit(node)
        self.inside.pop()

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        self.found.append((self.inside[-1] if self.inside else "", name))
        if isinstance(function, ast.Name) and name == "write":  # memcheck.cli.write.write
            self.found.pop()
        self.generic_visit(node)


@cache
def calls(root: Path) -> list[tuple[str, str, str]]:
    """File, function and callee of every call of the package's modules that have a word for writing or printing."""
    found = []
    for path, tree in trees(root / "memcheck", {"write", *PRINTERS}):
        visitor = Calls()
        visitor.visit(tree)
        found += [(path.relative_to(root).as_posix(), inside, name) for inside, name in visitor.found]
    return found


@pytest.mark.slow
def test_nothing_writes_but_through_the_choke_point(root: Path) -> None:
    """Every ``write`` of the package is in the list, and every entry of the list is there."""
    assert {(file, inside) for file, inside, name in calls(root) if name in {"write", "writelines"}} == set(WRITES)


@pytest.mark.slow
def test_nothing_prints(root: Path) -> None:
    """``print``, click's ``echo`` and the interpreter's tracebacks go around the choke point."""
    assert [each for each in calls(root) if each[2] in PRINTERS] == []


@pytest.mark.parametrize("line", ["print(x)", "sys.stdout.write(x)", "def f():\n    s = sys.stderr\n    s.write(x)"])
def test_the_check_sees_what_it_looks_for(line: str) -> None:
    """The visitor finds a print, a write and a write through another name."""
    visitor = Calls()
    visitor.visit(ast.parse(line))
    assert {name for _, name in visitor.found} & {"print", "write"}
