"""One remedy, one change of the file, whoever makes it: ``suggest``, ``check --fix``, JSON, SARIF, rdjson."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.plan.finding import OTHER_HARDWARE

Capture = pytest.CaptureFixture[str]
Change = tuple[tuple[int, int], tuple[int, int], str]
PLANS = {
    "one key": """\
memcheck: 1
model: llama-3.2-1b
hardware: {gpu: rtx-4090}   # ours
training:
  framework: torchtitan
  micro_batch_size: 8
  sequence_length: 4096
  global_batch_size: 64
  activation_checkpointing: full
""",
    "several keys and a new section": """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: a100-80gb, gpus_per_node: 8}
training:
  framework: pytorch
  micro_batch_size: 4   # of each GPU
  sequence_length: 8192
  gradient_accumulation_steps: 2
""",
    "a server": """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: rtx-4090, gpus_per_node: 4}
parallelism: {}
inference: {batch_size: 24, context_length: 8192}
""",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty repository."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")


def of_json(edits: list[dict[str, Any]]) -> list[Change]:
    """Edits of a JSON report."""
    return [
        ((e["start"]["line"], e["start"]["column"]), (e["end"]["line"], e["end"]["column"]), e["text"]) for e in edits
    ]


def of_sarif(fix: dict[str, Any]) -> list[Change]:
    """Replacements of a SARIF fix."""
    found = []
    for change in fix["artifactChanges"]:
        for each in change["replacements"]:
            r = each["deletedRegion"]
            end = (r.get("endLine", r["startLine"]), r["endColumn"])
            found.append(((r["startLine"], r["startColumn"]), end, each["insertedContent"]["text"]))
    return found


def applied(text: str, changes: list[Change]) -> str:
    """The file after some changes."""
    lines = text.splitlines(keepends=True)
    for (line, column), (end_line, end_column), new in sorted(changes, reverse=True):
        first, last = lines[line - 1], lines[end_line - 1]
        lines[line - 1 : end_line] = [first[: column - 1] + new + last[end_column - 1 :]]
    return "".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_the_same_edits_everywhere(name: str, capsys: Capture) -> None:
    """The first remedy's text is the same by every way to it, and what they write passes ``check``.

    Fixes and suggestions that are accepted with a click change no hardware.
    """
    text, path = PLANS[name], Path("plan.yaml")
    path.write_text(text)
    formats = ("json=r.json", "sarif=r.sarif", "rdjson=r.rdjson")
    assert main(["check", "plan.yaml", *(part for each in formats for part in ("--format", each))]) == 1
    (plan,) = json.loads(Path("r.json").read_text())["plans"]
    remedies = next(d["remedies"] for d in plan["diagnostics"] if d["remedies"])
    wanted = applied(text, of_json(remedies[0]["edits"]))
    assert wanted != text
    results = json.loads(Path("r.sarif").read_text())["runs"][0]["results"]
    fixes = next(result["fixes"] for result in results if result.get("fixes"))
    remedies = [r for r in remedies if r["group"] != OTHER_HARDWARE]
    assert [applied(text, of_sarif(fix)) for fix in fixes] == [applied(text, of_json(r["edits"])) for r in remedies]
    offered = {applied(text, of_json(r["edits"])) for r in remedies}
    for diagnostic in json.loads(Path("r.rdjson").read_text())["diagnostics"]:
        for each in diagnostic.get("suggestions", ()):
            assert applied(text, of_json([{**each["range"], "text": each["text"]}])) in offered
    capsys.readouterr()
    assert main(["check", "plan.yaml", "--diff", "--unsafe-fixes"]) == 1
    patch = capsys.readouterr().out
    assert path.read_text() == text
    subprocess.run(["patch", "-s", "-p0"], input=patch.encode(), check=True)
    assert path.read_text() == wanted
    assert main(["check", "plan.yaml"]) == 0
    path.write_text(text)
    assert main(["check", "plan.yaml", "--fix", "--unsafe-fixes"]) == 0
    assert path.read_text() == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_suggest_writes_what_it_shows(name: str, capsys: Capture) -> None:
    """For every suggestion: its JSON edits, its ``--diff`` and its ``--apply`` are one text, and it passes."""
    text, path = PLANS[name], Path("plan.yaml")
    path.write_text(text)
    main(["suggest", "plan.yaml", "--format", "json"])
    found = json.loads(capsys.readouterr().out)["remedies"]
    assert found
    for number, remedy in enumerate(found, 1):
        wanted = applied(text, of_json(remedy["edits"]))
        assert wanted != text
        assert main(["suggest", "plan.yaml", "--diff", "--apply", str(number)]) == 0
        patch = capsys.readouterr().out
        assert path.read_text() == text
        subprocess.run(["patch", "-s", "-p0"], input=patch.encode(), check=True)
        assert path.read_text() == wanted
        path.write_text(text)
        assert main(["suggest", "plan.yaml", "--apply", str(number)]) == 0
        assert path.read_text() == wanted
        assert main(["check", "plan.yaml"]) == 0
        capsys.readouterr()
        path.write_text(text)


def test_a_key_in_an_empty_mapping() -> None:
    """``parallelism: {}`` takes the new keys between its braces."""
    path = Path("plan.yaml")
    path.write_text(PLANS["a server"])
    assert main(["suggest", "plan.yaml", "--apply", "1"]) == 0
    assert "parallelism: {tensor: 2}\n" in path.read_text()
