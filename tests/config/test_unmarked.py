"""Files that were meant as plans are not passed over in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.plan.sniff import misspells_mark, resembles_plan
from tests.cli.plans import write, write_over

Capture = pytest.CaptureFixture[str]
TRAINER = "model: llama\ntraining:\n  learning_rate: 1.0e-5\n  epochs: 3\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one plan that fits."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    return tmp_path


def marked(path: Path, mark: str) -> None:
    """Write another first line."""
    path.write_text(mark + path.read_text(encoding="utf-8").removeprefix("memcheck: 1\n"), encoding="utf-8")


@pytest.mark.parametrize(
    "mark", ["memchek: 1\n", "Memcheck: 1\n", "mem_check: 1\n", "mem-check: 1  # plan\n", "memchcek: 1\n"]
)
@pytest.mark.parametrize("arguments", [["."], ["--skip-unmarked", "over.yaml", "good.yaml"]])
def test_a_misspelt_mark_is_an_error(folder: Path, capsys: Capture, mark: str, arguments: list[str]) -> None:
    """A plan does not leave the gate by a typing error in its first line, in a folder or in a hook."""
    marked(write_over(folder), mark)
    assert main(["check", "--format=concise", *arguments]) == 1
    assert "over.yaml:1:1: MEM011" in capsys.readouterr().out


def test_a_plan_without_a_mark_is_named(folder: Path, capsys: Capture) -> None:
    """Sections of a plan without the mark may be a base or another tool's: the run says that it left them out."""
    marked(write_over(folder), "")
    assert main(["check", "."]) == 0
    error = capsys.readouterr().err
    assert "memcheck: warning: not checked, because `memcheck: 1` is not at the top: over.yaml" in error


def test_a_base_needs_no_mark(folder: Path, capsys: Capture) -> None:
    """What a judged plan extends is judged with it."""
    marked(write(folder, "base"), "")
    (folder / "good.yaml").write_text("memcheck: 1\nextends: ./base.yaml\n", encoding="utf-8")
    assert main(["check", "."]) == 0
    assert capsys.readouterr().err == ""


def test_other_tools_files_are_left_alone(folder: Path, capsys: Capture) -> None:
    """A trainer's config with a model and a training section is nobody's plan."""
    (folder / "config.yaml").write_text(TRAINER, encoding="utf-8")
    assert main(["check", "."]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "misspelt", "resembles"),
    [
        (b"memchek: 1\nmodel: x\n", True, False),
        (b"version: 1\nmodel: x\n", False, False),
        (b"memchek: 1\njobs: {}\n", False, False),
        (b"revision: 1\nhardware: {gpu: a}\nmodel: b\n", False, True),
        (b"a:\n  memchek: 1\nmodel: x\n", False, False),
        (b"hardware: {gpu: a}\nmodel: b\n", False, True),
        (b"hardware: {gpu: a}\nhardware: {gpu: a}\n", False, False),
        (b"", False, False),
    ],
)
def test_what_the_bytes_say(text: bytes, misspelt: bool, resembles: bool) -> None:
    """Only keys at the top count, and only with a plan's sections beside them."""
    assert (misspells_mark(text), resembles_plan(text)) == (misspelt, resembles)
