"""CONTRIBUTING.md's walk of one plan prints the numbers that stand in it."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from textwrap import dedent

import pytest

HEADING = "One plan, from text to verdict"


@pytest.fixture(scope="module")
def walk(root: Path) -> str:
    """The section, up to the next heading."""
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.split(r"^#+ ", page.partition(f"## {HEADING}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]


def blocks(section: str) -> list[str]:
    """The Python blocks of a section, without the indentation of their list."""
    found = re.findall(r"^ +```python\n(.*?)^ +```$", section, flags=re.MULTILINE | re.DOTALL)
    return [dedent(block) for block in found]


def test_every_block_prints_what_stands_behind_it(walk: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever pastes the blocks sees the numbers of the page."""
    monkeypatch.chdir(root)
    names: dict[str, object] = {}
    for block in blocks(walk):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(block, names)  # noqa: S102 - our own page
        said = re.findall(r"^(?:print\(.*\)|\))  # (.*)$", block, flags=re.MULTILINE)
        assert said
        assert printed.getvalue().splitlines() == said, block


def test_every_station_is_a_file(walk: str, root: Path) -> None:
    """Each station begins with a file, which exists, and has one block that shows what comes out of it."""
    stations = re.findall(r"^\d+\. `([\w./]+)`: ", walk, flags=re.MULTILINE)
    assert len(stations) == len(re.findall(r"^\d+\. ", walk, flags=re.MULTILINE)) == len(blocks(walk))
    assert [name for name in stations if not (root / name).is_file()] == []
