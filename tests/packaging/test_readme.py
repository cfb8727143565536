"""The README's commands, which `.ci/run` executes word for word."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

HEADINGS = ["Try it", "Run the tests"]


def section(readme: str, heading: str) -> str:
    """The text below a heading of the second level."""
    parts = re.split(r"^## (.+)$", readme, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def blocks(text: str) -> list[str]:
    """The fenced `sh` blocks of a text."""
    return re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("heading", HEADINGS)
def test_section_has_one_block(readme: str, heading: str) -> None:
    """A newcomer pastes exactly one block per section, and no other kind of fence carries commands there."""
    text = section(readme, heading)
    assert len(blocks(text)) == 1
    assert "```bash" not in text
    assert "```console" not in text


@pytest.mark.parametrize("heading", HEADINGS)
def test_block_stands_alone(readme: str, heading: str) -> None:
    """Each block makes the environment it needs, so that it works pasted into a fresh clone."""
    (block,) = blocks(section(readme, heading))
    assert block.startswith("python3 -m venv .venv\n")
    assert "install" in block


SCREEN = 24
"""Lines of the smallest terminal that people have."""


def test_the_first_command_prints_less_than_a_screen(root: Path, readme: str) -> None:
    """The first block ends in a check whose output fits a screen and says what to type next."""
    (block,) = blocks(section(readme, "Try it"))
    program, *arguments = shlex.split(block.strip().splitlines()[-1])
    assert program == ".venv/bin/memcheck"
    done = subprocess.run(
        [sys.executable, "-m", "memcheck", *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert 3 < len(lines) < SCREEN
    assert any(line.startswith("more: memcheck explain MEM") for line in lines)


def test_the_first_commands_need_no_plan(root: Path, readme: str) -> None:
    """A model by its name, somebody's config and a launch line: none of their words is a plan."""
    (block,) = blocks(section(readme, "Try it"))
    commands = [shlex.split(line)[1:] for line in block.splitlines() if line.startswith(".venv/bin/memcheck ")]
    assert len(commands) == 3
    assert sum("--" in words for words in commands) == 1
    configs = [root / word for words in commands for word in words if word.startswith("examples/")]
    assert len(configs) == 1
    assert "memcheck:" not in configs[0].read_text(encoding="utf-8")


def test_every_page_is_in_the_index(root: Path) -> None:
    """docs/README.md leads to every page beside it, and the README to the index and to what newcomers need next."""
    index = (root / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (root / "docs").glob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert "](docs/README.md)" in readme
    assert all(f"`memcheck {word}" in readme for word in ("verify", "baseline", "suggest"))


def test_sections_come_on_the_first_screen(readme: str) -> None:
    """What to type comes before everything that explains it."""
    assert re.findall(r"^## (.+)$", readme, flags=re.MULTILINE)[: len(HEADINGS)] == HEADINGS


@pytest.mark.parametrize("heading", HEADINGS)
def test_gate_runs_the_blocks_verbatim(root: Path, readme: str, heading: str) -> None:
    """The gate's own extraction of a block gives the very text of the README."""
    gate = (root / ".ci" / "run").read_text(encoding="utf-8")
    function = re.search(r"^readme_block\(\) \{.*?^\}$", gate, flags=re.MULTILINE | re.DOTALL)
    assert function is not None
    command = f"{function[0]}\nreadme_block {shlex.quote(heading)}"
    found = subprocess.run(["bash", "-c", command], cwd=root, capture_output=True, text=True, check=True).stdout
    assert found == blocks(section(readme, heading))[0]
    assert f'run_readme_block "{heading}"' in gate


def test_relative_links_lead_somewhere(root: Path, tracked_files: list[Path]) -> None:
    """Every relative link in the documentation names a file or folder of the repository."""
    broken = [
        f"{page.relative_to(root)}: {target}"
        for page in tracked_files
        if page.suffix == ".md"
        for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
