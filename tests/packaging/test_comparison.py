"""The comparison with other tools: every claim of memcheck's names a test that exists or a command that runs."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from memcheck.__main__ import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "comparison.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and "---" not in line
]
CLAIMS = [row for row in ROWS if "✓" in row[-2]]
EVIDENCE = sorted({each for row in ROWS for each in re.findall(r"`([^`]+)`", row[-1])})
TESTS = [each for each in EVIDENCE if "::" in each]
COMMANDS = [each for each in EVIDENCE if each.startswith("memcheck ")]


def test_every_claim_has_evidence() -> None:
    """A row with a tick names at least one test or command, and nothing is named that is neither."""
    assert CLAIMS
    assert [row[0] for row in CLAIMS if not re.findall(r"`([^`]+)`", row[-1])] == []
    assert sorted(TESTS + COMMANDS) == EVIDENCE


def test_named_test_exists(root: Path) -> None:
    """The file has a test function of that name."""
    for node in TESTS:
        file, _, name = node.partition("::")
        tree = ast.parse((root / file).read_text(encoding="utf-8"))
        assert name in {item.name for item in tree.body if isinstance(item, ast.FunctionDef)}, node


@pytest.mark.parametrize("command", COMMANDS)
def test_named_command_runs(
    root: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits 0 at the top of the checkout, and says something."""
    monkeypatch.chdir(root)
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out
