"""docs/reference/formats.md and docs/reference/cli.md: complete, and what they tell people to paste is valid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.cli import write as hyperlinks
from memcheck.report import FORMATS
from tests.cli.plans import write, write_over

SCRIPTS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_documented(page: str, name: str) -> None:
    """A row in the table, a section, and a word in the help."""
    assert re.search(rf"^\| \[`{name}`\]\(#[\w-]+\) \|", page, flags=re.MULTILINE)
    assert re.search(rf"^## .*\b{name}\b", page, flags=re.MULTILINE)


def test_help_names_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever asks for help sees what there is."""
    assert main(["check", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    help = text[text.index("--format") :][:400]
    assert [name for name in FORMATS if not re.search(rf"\b{name}\b", help)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "schema"), [(0, "vendor.github-workflows"), (1, "vendor.gitlab-ci")], ids=["github", "gitlab"]
)
def test_pipelines_follow_their_schemas(root: Path, page: str, tmp_path: Path, number: int, schema: str) -> None:
    """The workflows and the jobs that people copy are valid."""
    file = tmp_path / "pipeline.yml"
    file.write_text(blocks(page, "yaml")[number], encoding="utf-8")
    command = [SCRIPTS / "check-jsonschema", "--builtin-schema", schema, file]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_report_example_writes_its_page(page: str, tmp_path: Path, root: Path) -> None:
    """The command that writes a page to pass on."""
    done = shell(tmp_path, root, blocks(page, "sh")[2])
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "memory.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


def test_workflow_asks_for_no_more_than_it_needs(page: str) -> None:
    """Nothing by default; reading to check out, and writing alerts."""
    workflow = blocks(page, "yaml")[0]
    assert "\npermissions: {}\n" in workflow
    assert re.findall(r"^ +([\w-]+): (read|write) ", workflow, flags=re.MULTILINE) == [
        ("contents", "read"),
        ("security-events", "write"),
        ("actions", "read"),
    ]
    assert "pull_request_target" not in page


def shell(tmp_path: Path, root: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a documented command on two plans."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "plans").mkdir()
    write(tmp_path / "plans")
    write_over(tmp_path / "plans")
    function = f'memcheck() {{ "{sys.executable}" -m memcheck "$@"; }}\n'
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(
        ["bash", "-c", function + script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_first_example_writes_its_files(page: str, tmp_path: Path, root: Path) -> None:
    """Three reports from one run."""
    done = shell(tmp_path, root, blocks(page, "sh")[0])
    assert done.returncode == 1, done.stderr
    assert "error[MEM101]" in done.stdout
    assert {path.name for path in tmp_path.glob("memcheck.*")} == {"memcheck.sarif", "memcheck.json"}


@pytest.mark.slow
def test_jsonl_example_ranks_plans(page: str, tmp_path: Path, root: Path) -> None:
    """The fullest plan comes first."""
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    done = shell(tmp_path, root, blocks(page, "sh")[1])
    assert [line.split("\t")[1] for line in done.stdout.splitlines()] == ["over", "good"], done.stderr


def test_terminals_are_named(root: Path) -> None:
    """Every terminal that gets links is in the documentation."""
    text = (root / "docs" / "reference" / "cli.md").read_text(encoding="utf-8").lower()
    names = {"iterm.app": "iterm2", "vscode": "vs code", "wt_session": "windows terminal", "konsole_version": "konsole"}
    wanted = [*hyperlinks.PROGRAMS, *hyperlinks.TERMS, *hyperlinks.MARKS]
    short = {names.get(name.lower(), name.lower().removeprefix("xterm-").removesuffix("_window_id")) for name in wanted}
    assert [name for name in short if name not in text] == []
