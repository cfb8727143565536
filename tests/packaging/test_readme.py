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
    assert block.startswith("python3 -m venv .venv && ")
    assert " pip install " in block
    assert block.count("\n") == 1, "one command"


SCREEN = 24
"""Lines of the smallest terminal that people have."""


@pytest.mark.slow
def test_the_first_command_prints_less_than_a_screen(root: Path, readme: str) -> None:
    """The first command ends in a check whose output fits a screen and says what to type next."""
    program, *arguments = tried(readme)
    assert program == ".venv/bin/memcheck"
    done = subprocess.run(
        [sys.executable, "-m", "memcheck", *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert 3 < len(lines) < SCREEN
    assert any(line.startswith("more: memcheck explain MEM") for line in lines)


def tried(readme: str) -> list[str]:
    """The words of the check that the first command ends in."""
    (block,) = blocks(section(readme, "Try it"))
    return shlex.split(block.strip().rpartition(" && ")[2])


def test_the_first_command_needs_no_plan(root: Path, readme: str) -> None:
    """It checks a config as a team has it."""
    (config,) = (root / word for word in tried(readme) if word.startswith("examples/"))
    assert "memcheck:" not in config.read_text(encoding="utf-8")


def test_every_page_is_in_the_index(root: Path) -> None:
    """docs/README.md leads to every page, and the README to the index and to what newcomers need next."""
    index = (root / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.relative_to(root / "docs").as_posix() for page in (root / "docs").rglob("*.md")} - {"README.md"}
    assert {page for page in pages if f"]({page})" not in index} == set()
    readme = (root / "README.md").read_text(encoding="utf-8")
    assert "](docs/README.md)" in readme
    assert all(f"`memcheck {word}" in readme for word in ("verify", "baseline", "suggest"))


def test_pages_are_short(root: Path, readme: str) -> None:
    """The README is read in three minutes, and all pages but those on internals in two hours."""
    pages = [
        page.read_text(encoding="utf-8") for page in (root / "docs").rglob("*.md") if "internals" not in page.parts
    ]
    assert len(readme.split()) <= 700
    assert (
        sum(len(text.split()) for text in (readme, *pages)) <= 29_900
    )  # 3,130 of them: serving, scripts, the guard, and what to do after the crash


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


PARTS = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")
"""A link to a part of a page."""
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = [re.sub(r"\]\([^)]*\)", "", heading) for heading in HEADING.findall(text)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_anchors_lead_somewhere(root: Path, tracked_files: list[Path]) -> None:
    """A link to a part of a page names one of its headings."""
    broken = [
        f"{page.relative_to(root)}: {target}#{anchor}"
        for page in tracked_files
        if page.suffix == ".md"
        for target, anchor in PARTS.findall(page.read_text(encoding="utf-8"))
        if (other := page.parent / target if target else page).suffix == ".md"
        and other.exists()
        and anchor not in anchors(other)
    ]
    assert broken == []


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
