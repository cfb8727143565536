"""What a comparison says of each plan: its mark, the keys that changed, the first remedy, the hours of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memcheck.__main__ import main
from memcheck.cli.review.diff.compare import changed_keys
from memcheck.cli.review.diff.report import key_lines

Capture = pytest.CaptureFixture[str]
PLAN = """memcheck: 1
name: {name}
model: llama-3.1-8b
hardware: {{gpu: h100-80gb, gpus_per_node: 8}}
parallelism: {{zero_stage: 3}}
training:
  framework: huggingface
  precision: bf16-mixed
  sequence_length: 8192
  activation_checkpointing: full
  micro_batch_size: {batch}{comment}
{more}
"""
KNOWN = "  # memcheck: ignore[MEM101, MEM102] it was run"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two empty folders."""
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new"):
        Path(name).mkdir()


def wrote(side: str, name: str, batch: int, comment: str = "", more: str = "") -> None:
    text = PLAN.format(name=name, batch=batch, comment=comment, more=more)
    Path(side, f"{name}.yaml").write_text(text, encoding="utf-8")


def compared(capsys: Capture, form: str) -> str:
    """What a comparison of both folders prints."""
    assert main(["diff", "old", "new", "--format", form]) == 0
    return capsys.readouterr().out


def changes(capsys: Capture) -> dict[str, Any]:
    """The changes of the JSON report, by name, in their order."""
    return {each["name"]: each for each in json.loads(compared(capsys, "json"))["changes"]}


def test_plans_are_marked_as_check_marks_them(capsys: Capture) -> None:
    """An accepted plan is no plan that passes, however much less it needs than before."""
    wrote("old", "known", 9)
    wrote("new", "known", 8, KNOWN)
    wrote("old", "better", 8)
    wrote("new", "better", 1, more="  loss: fused-linear")
    found = changes(capsys)
    assert (found["known"]["verdict"], found["known"]["after"]["accepted"]) == ("passes-now", True)
    assert found["known"]["after"]["verdict"] == "does_not_fit"
    assert (found["better"]["after"]["accepted"], found["better"]["after"]["verdict"]) == (False, "fits")
    rows = {line.split("**")[1]: line for line in compared(capsys, "markdown").splitlines() if "| **" in line}
    assert rows["known"].startswith("| ❌ → ⚪ |")
    assert "<br>accepted |" in rows["known"]
    assert rows["better"].startswith("| ❌ → ✅ |")
    text = compared(capsys, "full")
    assert "known.yaml: changed, accepted" in text
    assert "1 plan passes now, 1 plan is accepted now, 2 changed" in text


def test_a_report_keeps_the_marks(capsys: Capture) -> None:
    """Two JSON reports of ``check`` say the same."""
    wrote("old", "known", 9)
    wrote("new", "known", 8, KNOWN)
    for side in ("old", "new"):
        main(["check", side, "--format", f"json={side}.json"])
    capsys.readouterr()
    assert main(["diff", "old.json", "new.json", "--format", "markdown"]) == 0
    assert "| ❌ → ⚪ |" in capsys.readouterr().out


def test_what_fails_comes_first(capsys: Capture) -> None:
    """What fails now, what still fails, then the others by growth."""
    wrote("old", "grows", 1, more="  loss: fused-linear")
    wrote("new", "grows", 2, more="  loss: fused-linear")
    wrote("old", "still", 9)
    wrote("new", "still", 8)
    wrote("old", "fails", 1)
    wrote("new", "fails", 8)
    assert list(changes(capsys)) == ["fails", "still", "grows"]


def test_changed_keys_and_the_first_remedy_are_named(capsys: Capture) -> None:
    """In every format, for a plan that fails now; the remedy is that of ``check``."""
    wrote("old", "grown", 1)
    wrote("new", "grown", 8)
    found = changes(capsys)["grown"]
    assert found["changed_keys"] == [{"key": "training.micro_batch_size", "before": 1, "after": 8}]
    main(["check", "--no-cache", "new", "--format", "json"])
    (first, *_) = json.loads(capsys.readouterr().out)["plans"][0]["diagnostics"][0]["remedies"]
    assert all(key in found["remedy"] for key in first["set"])
    assert "  training.micro_batch_size 1 -> 8\n" in compared(capsys, "full")
    assert "first remedy: " in compared(capsys, "full")
    assert "<br><code>training.micro&#95;batch&#95;size 1 → 8</code>" in compared(capsys, "markdown")
    assert "First remedy: <code>" in compared(capsys, "markdown")


def test_hours_are_told_where_the_steps_are_stated(capsys: Capture) -> None:
    """Half the steps take half the hours; nothing is told where no plan states any."""
    wrote("old", "long", 1, more="  steps: 2000")
    wrote("new", "long", 1, more="  steps: 1000\n  clip_grad_norm: false")
    wrote("old", "open", 1)
    wrote("new", "open", 2)
    found = changes(capsys)
    before, after = (found["long"][side]["gpu_hours"] for side in ("before", "after"))
    assert before == pytest.approx(2 * after, rel=0.05)
    assert found["open"]["after"]["gpu_hours"] is None
    assert compared(capsys, "full").count("GPU hours of the run") == 1


def test_one_word_is_the_field_that_it_stands_for() -> None:
    """What only is written in another way did not change; what names the plan is no key of its job."""
    before = {"name": "a", "training": {"optimizer": "adamw", "lora": {"rank": 8}}}
    after = {"name": "b", "training": {"optimizer": {"name": "adamw", "offload": "cpu"}, "lora": 16}}
    assert changed_keys(before, after) == (
        ("training.lora.rank", 8, 16),
        ("training.optimizer.offload", None, "cpu"),
    )


def test_long_lists_and_values_are_cut() -> None:
    """A plan with a thousand new keys and a long value takes nine short lines without control characters."""
    after = {f"k{n}": "x" * 5000 + "\x1b[31m" for n in range(1000)}
    lines = key_lines(changed_keys({}, after), "->")
    assert len(lines) == 9
    assert lines[-1] == "992 more"
    assert max(map(len, lines)) < 100
    assert "\x1b" not in "".join(lines)
