"""What pages, docstrings and comments name exists: a file that moves takes its mentions along."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FILE = re.compile(r"(?<![\w/.-])(?:memcheck|tests|benchmarks|examples|schemas)/[\w./-]*\w(?![\w./-]*@)")
"""A path from the top of the repository; one with a commit behind it is another repository's. One with a placeholder (``NAME``, ``NNN``) names what somebody will write."""
NAME = re.compile(r"(?<![\w/.@-])memcheck(?:\.[a-z_][a-z0-9_]*)+(?![\w/{])(?<!_)")
"""A dotted name of the package."""
PLACEHOLDER = re.compile(r"NAME|NNN")
OTHER = ("benchmarks/baselines/", "examples/glm47-flash/", "examples/gpt-oss/", "examples/qwen3.5/", "examples/train/")
"""Folders of other repositories, from whose files readings were taken."""
FINGERPRINT = "memcheck/v1"
"""A key in SARIF, which looks like a path."""
OTHERS = ("toml", "sarif", "xml", "json", "csv")
"""Suffixes of files that are called after memcheck."""


def missing_files(text: str, root: Path) -> list[str]:
    """The paths in a text that lead nowhere."""
    found = {path for path in FILE.findall(text) if not PLACEHOLDER.search(path)} - {FINGERPRINT}
    found = {path for path in found if not path.startswith(OTHER)}
    return sorted(path for path in found if not (root / path).exists() and not (root / f"{path}.py").exists())


def missing_names(text: str, root: Path) -> list[str]:
    """The dotted names in a text that are neither a module nor written in the module they are said to be in."""
    return sorted({name for name in NAME.findall(text) if not exists(name.split("."), root)})


def exists(parts: list[str], root: Path) -> bool:
    """Whether there is such a module, or a module with such a name in it."""
    place = root
    for index, part in enumerate(parts):
        if (place / part).is_dir():
            place /= part
            continue
        module, rest = place / f"{part}.py", parts[index + 1 :]
        if not module.exists():
            module, rest = place / "__init__.py", parts[index:]
        text = module.read_text(encoding="utf-8") if module.exists() else ""
        return all(re.search(rf"\b{word}\b", text) for word in rest) and bool(text)
    return True


def pages(root: Path, tracked_files: list[Path]) -> list[Path]:
    """What people read about the code: every page that is no golden, and the package itself."""
    return [
        path
        for path in tracked_files
        if path.exists()
        and (
            (path.suffix == ".md" and not path.is_relative_to(root / "tests"))
            or (path.suffix == ".py" and path.is_relative_to(root / "memcheck"))
        )
    ]


@pytest.mark.slow
def test_every_path_exists(root: Path, tracked_files: list[Path]) -> None:
    """Pages, docstrings and comments name files that are there."""
    found = {path: missing_files(path.read_text(encoding="utf-8"), root) for path in pages(root, tracked_files)}
    assert {path.relative_to(root).as_posix(): names for path, names in found.items() if names} == {}


@pytest.mark.slow
def test_every_dotted_name_exists(root: Path, tracked_files: list[Path]) -> None:
    """Pages, docstrings and comments name modules, classes and functions that are there."""
    found = {
        path: [name for name in missing_names(path.read_text(encoding="utf-8"), root) if not is_file(name)]
        for path in pages(root, tracked_files)
    }
    assert {path.relative_to(root).as_posix(): names for path, names in found.items() if names} == {}


def is_file(name: str) -> bool:
    """Whether it is a file called after memcheck: ``memcheck.toml``."""
    return name.partition(".")[2] in OTHERS


@pytest.mark.parametrize("text", ["see `memcheck/plan/gone.py`", "``memcheck/gone``", "held by tests/test_gone.py:"])
def test_a_path_that_leads_nowhere_is_seen(root: Path, text: str) -> None:
    """In code spans and in prose, with or without a suffix."""
    assert missing_files(text, root)


@pytest.mark.parametrize("text", ["`memcheck.gone`", ":mod:`memcheck.plan.gone`", ":func:`memcheck.plan.read.gone`"])
def test_a_name_of_nothing_is_seen(root: Path, text: str) -> None:
    """Modules, and what modules do not have."""
    assert missing_names(text, root)


@pytest.mark.parametrize(
    "text", ["memcheck/plan/read.py.", "memcheck/rules/memNNN_name.py", "https://example.org/memcheck/blob/main"]
)
def test_a_path_that_leads_somewhere_is_left_alone(root: Path, text: str) -> None:
    """At the end of a sentence, with a placeholder, or on another server."""
    assert missing_files(text, root) == []
