"""House rules that a linter does not know, held over every file of the repository."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

LINE_CAP = 600
LONGER_FILES: set[str] = set()
"""Files that may be longer than the cap; each needs a reason in a comment here."""

MACHINE_PATH = re.compile(r"(?<![\w.~$}])/(?:work|root|home/\w+|Users/\w+)/|\b[A-Z]:\\Users\\")
"""A path on somebody's machine."""

MACHINE_FOLDERS = ("/work", "/root", "/home", "/Users", "\\Users")
"""What every such path holds: most files hold none, and are not searched."""


def source_files(files: list[Path]) -> list[Path]:
    """The files somebody has to read: Python and shell."""
    return [path for path in files if path.suffix in {".py", ".sh"} or path.parts[-2:] == (".ci", "run")]


def test_files_stay_short(root: Path, tracked_files: list[Path]) -> None:
    """A source file holds one idea in at most 600 lines."""
    lengths = {
        path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in source_files(tracked_files)
    }
    assert {name: length for name, length in lengths.items() if length > LINE_CAP and name not in LONGER_FILES} == {}


def test_exceptions_are_still_needed(root: Path) -> None:
    """A file that became short again leaves the list of exceptions."""
    assert [
        name for name in LONGER_FILES if len((root / name).read_text(encoding="utf-8").splitlines()) <= LINE_CAP
    ] == []


@pytest.mark.slow
def test_every_test_says_what_it_holds(root: Path, tracked_files: list[Path]) -> None:
    """Every test has a docstring that states the behaviour in prose."""
    silent = []
    for path in tracked_files:
        if path.is_relative_to(root / "tests") and path.name.startswith("test_") and path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    sentence = ast.get_docstring(node) or ""
                    if len(sentence.split()) < 3 or not sentence.endswith("."):
                        silent.append(f"{path.relative_to(root)}: {node.name}")
    assert silent == []


def test_modules_defer_annotations(root: Path, tracked_files: list[Path]) -> None:
    """Every module of the package with code in it defers its annotations, which keeps imports cheap."""
    missing = [
        path.relative_to(root).as_posix()
        for path in tracked_files
        if path.is_relative_to(root / "memcheck") and path.suffix == ".py"
        if "def " in (text := path.read_text(encoding="utf-8")) or "class " in text
        if "from __future__ import annotations" not in text
    ]
    assert missing == []


def test_no_file_names_a_machine(root: Path, tracked_files: list[Path]) -> None:
    """No file mentions a path that exists on one machine only."""
    found = []
    for path in tracked_files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if any(folder in text for folder in MACHINE_FOLDERS):
            found += [f"{path.relative_to(root)}: {match[0]}" for match in MACHINE_PATH.finditer(text)]
    assert found == []
