"""Findings that are hidden are counted, and code scanning learns why."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from memcheck.__main__ import main
from tests.report.formats import schema

Capture = pytest.CaptureFixture[str]

PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {{gpu: h100-80gb, gpus_per_node: 8}}
parallelism:
  tensor: 8
  zero_stage: 3{comment}
  sequence: true
training: {{framework: torchtitan, micro_batch_size: 1, sequence_length: 4096}}
"""
WHY = "the same file runs on 16 GPUs, too"


def write(comment: str = "", name: str = "plan") -> None:
    """A plan whose ZeRO stage shards nothing: MEM208."""
    Path(f"{name}.yaml").write_text(PLAN.format(comment=comment), encoding="utf-8")


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in a repository of its own."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def output(capsys: Capture, form: str, *arguments: str) -> str:
    """What one check prints; nothing of it fails."""
    assert main(["check", ".", "--format", form, *arguments]) == 0
    return capsys.readouterr().out


def hide(how: str) -> list[str]:
    """Hide the finding in one of the three ways; what to add to the command line."""
    if how == "comment":
        write(f"  # memcheck: ignore[MEM208] {WHY}, until: 2999-12-31")
        return []
    write()
    if how == "baseline":
        assert main(["baseline", "write", ".", "--baseline", "accepted.json"]) == 0
        return ["--baseline", "accepted.json"]
    return ["--ignore", "MEM208"]


HOW = {
    "comment": ("hidden: 1 by comments", "suppressed"),
    "baseline": ("hidden: 1 by the baseline", "baselined"),
    "selection": ("hidden: 1 by the choice of rules", "deselected"),
}


@pytest.mark.parametrize("how", HOW)
def test_hidden_findings_are_counted(capsys: Capture, how: str) -> None:
    """Every summary says how many findings are hidden and by what; the JSON has a number for each."""
    arguments = hide(how)
    capsys.readouterr()
    words, field = HOW[how]
    for form in ("full", "concise", "github"):
        assert output(capsys, form, *arguments).splitlines()[-1] == f"checked 1 plan: 1 passed, 0 failed, {words}"
    assert f"1 passed, 0 failed, {words}" in output(capsys, "markdown", *arguments).splitlines()[0]
    summary = json.loads(output(capsys, "json", *arguments))["summary"]
    counts = {name: summary[name] for name in ("warnings", "suppressed", "baselined", "deselected")}
    assert counts == {"warnings": 0, "suppressed": 0, "baselined": 0, "deselected": 0, field: 1}
    assert json.loads(output(capsys, "jsonl", *arguments).splitlines()[-1])[field] == 1


def test_nothing_hidden_is_not_spoken_of(capsys: Capture) -> None:
    """A summary without hidden findings is as short as before, and SARIF has no word about suppression."""
    write()
    assert "hidden" not in output(capsys, "full")
    (run,) = json.loads(output(capsys, "sarif"))["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["MEM208"]
    assert "suppressions" not in run["results"][0]


@pytest.mark.parametrize(
    ("how", "suppression"),
    [
        ("comment", {"kind": "inSource", "status": "accepted", "justification": WHY}),
        ("baseline", {"kind": "external", "status": "accepted", "justification": "accepted in accepted.json"}),
        ("selection", None),
    ],
)
def test_code_scanning_learns_why(capsys: Capture, how: str, suppression: dict | None) -> None:
    """A suppressed result has the reason and its rule's page; results beside it say that nothing hides them."""
    arguments = hide(how)
    write(name="open")
    capsys.readouterr()
    log = json.loads(output(capsys, "sarif", *arguments))
    official = schema("sarif-schema-2.1.0.json")
    assert list(jsonschema.Draft4Validator(official).iter_errors(log)) == []
    (run,) = log["runs"]
    results = {each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]: each for each in run["results"]}
    if suppression is None:
        assert results == {}
        return
    assert results["open.yaml"]["suppressions"] == []
    assert results["plan.yaml"]["suppressions"] == [suppression]
    assert results["plan.yaml"]["partialFingerprints"].keys() == results["open.yaml"]["partialFingerprints"].keys()
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["MEM208"]


def test_the_key_of_a_result_outlives_its_suppression(capsys: Capture) -> None:
    """Accepting a finding closes its alert and opens no other one: our own fingerprint stays."""
    write()
    (before,) = json.loads(output(capsys, "sarif"))["runs"][0]["results"]
    hide("comment")
    (after,) = json.loads(output(capsys, "sarif"))["runs"][0]["results"]
    assert before["partialFingerprints"]["memcheck/v1"] == after["partialFingerprints"]["memcheck/v1"]
    assert after["suppressions"]


def test_notes_are_counted(capsys: Capture) -> None:
    """What is neither an error nor a warning has its place in the summary."""
    write()
    Path("memcheck.toml").write_text('severity = {MEM208 = "info"}', encoding="utf-8")
    assert output(capsys, "full").splitlines()[-1] == "checked 1 plan: 1 passed, 0 failed (1 note)"
    assert json.loads(output(capsys, "json"))["summary"]["infos"] == 1
