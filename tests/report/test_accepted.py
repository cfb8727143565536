"""A plan that passes because something hides its errors is accepted, and every report says so with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main
from tests.cli.plans import write, write_over

Capture = pytest.CaptureFixture[str]
REASON = "borrowed for the demo"


@pytest.fixture(autouse=True)
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One plan that does not fit and says why that is accepted, one that fits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    (tmp_path / ".git").mkdir()
    path = write_over(tmp_path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("memcheck: 1", f"memcheck: 1  # memcheck: ignore[MEM101] {REASON}"), encoding="utf-8")
    write(tmp_path)
    return tmp_path


def printed(capsys: Capture, form: str, *more: str) -> str:
    """What a passing check prints."""
    assert main(["check", "--format", form, *more, "."]) == 0
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("form", ["full", "brief"])
def test_the_terminal_does_not_say_pass(capsys: Capture, form: str) -> None:
    """The verdict is a word of its own, the reason stands below, and the summary counts it apart."""
    out = printed(capsys, form)
    assert "accepted  over  over.yaml" in out
    assert f"accepted: MEM101 exceeds-capacity by a comment: {REASON}" in out
    assert "checked 2 plans: 1 passed, 1 accepted, 0 failed" in out
    assert "pass  over" not in out


def test_markdown_has_no_tick_beside_what_does_not_fit(capsys: Capture) -> None:
    """The row is grey and says what was accepted."""
    (row,) = [line for line in printed(capsys, "markdown").splitlines() if "<b" in line and "over" in line]
    assert row.startswith("| ⚪ | **over**")
    assert f"Accepted<br>MEM101 exceeds-capacity by a comment: {REASON}" in row


def test_programs_read_who_accepted_what(capsys: Capture) -> None:
    """The JSON report keeps its status and adds what is accepted; CSV has a status for it, JUnit a line."""
    document = json.loads(printed(capsys, "json"))
    good, over = sorted(document["plans"], key=lambda plan: plan["name"])
    assert over["accepted"] == [{"code": "MEM101", "by": "comment", "why": REASON}]
    assert (over["status"], good["accepted"], document["summary"]["accepted"]) == ("passed", [], 1)
    assert ",over,accepted," in printed(capsys, "csv")
    assert f"accepted: MEM101 exceeds-capacity by a comment: {REASON}" in printed(capsys, "junit")
    assert "over.yaml: accepted" in printed(capsys, "github")


def test_pages_say_it_in_the_badge(capsys: Capture) -> None:
    """The page's verdict is the word, in the tone of notes, and its first sentence the reason."""
    page = printed(capsys, "html")
    assert '<span class="badge note">Accepted</span>' in page
    assert f"Accepted: MEM101 exceeds-capacity by a comment: {REASON}." in page


def test_the_choice_of_rules_accepts_as_well(capsys: Capture, plans: Path) -> None:
    """A plan whose rule is ignored is accepted by that choice, not passed."""
    write_over(plans)
    assert "accepted: MEM101 exceeds-capacity by the choice of rules" in printed(capsys, "full", "--ignore", "MEM101")


def test_the_report_names_what_was_judged(capsys: Capture) -> None:
    """Model, GPU, their number and the framework stand in the JSON report."""
    good = next(plan for plan in json.loads(printed(capsys, "json"))["plans"] if plan["name"] == "good")
    named = [good[key] for key in ("model", "gpu", "gpus", "framework")]
    assert named == ["llama-3.1-8b", "h100-80gb", 8, "pytorch"]
