"""Baselines with numbers that are none, and plans whose names are no UTF-8."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import write_over

Capture = pytest.CaptureFixture[str]
NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e400000")
WRONG = ("true", "-1", "1e30", "9" * 400, '"1"', "[1]")
BAD = os.fsdecode(b"b\xff.yaml")


def baseline(folder: Path, number: str, field: str = "utilization") -> None:
    """A plan that fails, and a baseline that would accept it."""
    write_over(folder)
    entry = f'{{"path": "over.yaml", "plan": "over", "code": "MEM101", "{field}": {number}}}'
    (folder / "b.json").write_text(f'{{\n "baseline": 1,\n "findings": [\n  {entry}\n ]\n}}\n')


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize("field", ["utilization", "host_bytes_per_node"])
def test_no_number(field: str, number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """It would accept whatever is needed; the error has its line and column."""
    monkeypatch.chdir(tmp_path)
    baseline(tmp_path, number, field)
    assert main(["check", "--baseline", "b.json", "over.yaml"]) == 2
    error = capsys.readouterr().err
    assert "b.json:4:" in error
    assert number in error
    assert main(["baseline", "show", "--baseline", "b.json"]) == 2


@pytest.mark.parametrize("number", WRONG)
def test_wrong_numbers(number: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Nor does any other value that no plan can need."""
    monkeypatch.chdir(tmp_path)
    baseline(tmp_path, number)
    for command in (["check", "--baseline", "b.json", "over.yaml"], ["baseline", "show", "--baseline", "b.json"]):
        assert main(command) == 2
        assert "b.json is no baseline" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_no_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Its findings are accepted like any other's, under an escape, and shown as one."""
    monkeypatch.chdir(tmp_path)
    write_over(tmp_path)
    Path("over.yaml").rename(BAD)
    assert main(["baseline", "write", "."]) == 0
    text = Path(".memcheck-baseline.json").read_bytes().decode("utf-8")
    assert json.loads(text)["findings"][0]["path"] == BAD
    assert main(["check", "--baseline", ".memcheck-baseline.json", "."]) == 0
    assert main(["baseline", "show"]) == 0
    assert main(["baseline", "write", BAD]) == 0
    assert "\udcff" not in capsys.readouterr().out


FORMS = ("full", "concise", "brief", "json", "jsonl", "github", "sarif", "junit", "gitlab", "markdown", "html", "csv",
         "rdjson", "checkstyle")  # fmt: skip
COMMANDS = {
    **{form: ["check", "--format", form, BAD] for form in FORMS},
    **{f"{form} in a file": ["check", "--format", f"{form}=out", BAD] for form in FORMS},
    "fix": ["check", "--diff", "--unsafe-fixes", BAD],
    "estimate": ["estimate", BAD],
    "formulas": ["estimate", "--formulas", BAD],
    "suggest": ["suggest", BAD],
    "compare": ["compare", "--gpu", "h200", BAD],
    "sweep": ["sweep", "--set", "training.micro_batch_size=1,2", BAD],
    "diff": ["diff", BAD, BAD],
    "diff as markdown": ["diff", "--format", "markdown", BAD, BAD],
    "export": ["export", "--to", "accelerate", BAD],
    "statistics": ["check", "--statistics", BAD],
    "two processes": ["check", "--jobs", "2", "."],
    "a shard": ["check", "--shard", "1/2", "."],
    "hook": ["hook", BAD],
    "import": ["import", BAD],
}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
@pytest.mark.parametrize("kind", COMMANDS)
def test_every_command_and_format(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """None of them ends in a defect, and what is written is UTF-8."""
    monkeypatch.chdir(tmp_path)
    write_over(tmp_path)
    Path("over.yaml").rename(BAD)
    assert main(COMMANDS[kind]) in (0, 1, 2)
    shown = capsys.readouterr()
    (shown.out + shown.err).encode("utf-8")
    assert "defect" not in shown.err
    if Path("out").exists():
        Path("out").read_bytes().decode("utf-8")
