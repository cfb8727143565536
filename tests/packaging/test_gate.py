"""The gate's sections: every test is in one of them, once."""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import pytest_collection_modifyitems

KINDS = ("slow", "torch", "browser", "slurm", "network")
"""Marks that select; ``torch``, ``browser`` and ``slurm`` make a test slow, see ``tests/conftest.py``."""


def selections(root: Path) -> list[str]:
    """What each run of pytest selects: those of the gate, and the README's, which the gate runs."""
    commands = [
        shlex.split(line)
        for name in ("README.md", ".ci/run")
        for line in (root / name).read_text(encoding="utf-8").splitlines()
        if re.search('python"? -m pytest', line)
    ]
    return [command[command.index("-m", command.index("pytest")) + 1] for command in commands]


def possible() -> list[tuple[str, ...]]:
    """The marks that a test can have together."""
    every = [marks for n in range(len(KINDS) + 1) for marks in itertools.combinations(KINDS, n)]
    starts_much = [{"torch", "browser", "slurm"} & set(marks) for marks in every]
    return [
        marks for marks, much in zip(every, starts_much, strict=True) if len(much) < 2 if "slow" in marks or not much
    ]


@pytest.mark.parametrize("marks", possible(), ids="-".join)
def test_every_test_is_run_once(root: Path, marks: tuple[str, ...]) -> None:
    """Whatever marks a test has, one section selects it."""
    names = {kind: kind in marks for kind in KINDS}
    chosen = [each for each in selections(root) if eval(each, {}, names)]  # noqa: S307 - pytest's syntax is Python's
    assert len(chosen) == 1, chosen


@pytest.mark.parametrize("mark", ["torch", "browser", "slurm"])
def test_what_starts_much_is_slow(mark: str, request: pytest.FixtureRequest) -> None:
    """A test with PyTorch, a browser or Slurm is slow without saying so."""
    item = pytest.Function.from_parent(request.node.parent, name="test_it", callobj=lambda: None)
    item.add_marker(mark)
    pytest_collection_modifyitems([item])
    assert item.get_closest_marker("slow") is not None


def test_marks_stand_in_the_files_of_their_tests(tracked_files: list[Path]) -> None:
    """By their marks files are left out before they are imported: none comes from a file beside them."""
    helpers = [path for path in tracked_files if path.suffix == ".py" and "tests" in path.parts[:-1]]
    helpers = [path for path in helpers if not path.name.startswith("test_")]
    assert helpers
    assert [
        path for path in helpers if re.search(r"\bmark\.(slow|torch|browser|slurm)\b", path.read_text("utf-8"))
    ] == []
