"""The report for hooks: a commit is refused in a few lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.edge.screen import Screen
from memcheck.report.brief import MOST_LINES, plan_lines
from tests.cli.plans import write, write_over
from tests.report.rule_reports import CODES, report_of

Capture = pytest.CaptureFixture[str]


def test_a_plan_takes_ten_lines() -> None:
    """Whatever a rule has to say fits, cut to the screen, and the last line says where the rest is."""
    for code in CODES:
        for width in [60, 100]:
            for plan in report_of(code).plans:
                lines = plan_lines(plan, Screen(width=width))
                assert len(lines) <= MOST_LINES, code
                assert lines[-1].endswith(f"memcheck check {plan.path}"), code
                assert any(code in line for line in lines), code


def test_findings_that_have_no_room_are_counted(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan with many findings shows the first, and how many more there are."""
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path)
    text = path.read_text(encoding="utf-8")
    path.write_text(text + "".join(f"  unknown_{number}: 1\n" for number in range(12)), encoding="utf-8")
    assert main(["check", "--format=brief", "good.yaml"]) == 1
    section = capsys.readouterr().out.partition("\n\n")[0].splitlines()
    assert len(section) <= MOST_LINES
    shown = sum(line.startswith("error[MEM011]") for line in section)
    assert f"and {12 - shown} more findings" in section


def test_plans_without_findings_are_counted(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody scrolls through what passes."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    write_over(tmp_path)
    assert main(["check", "--format=brief", "."]) == 1
    out = capsys.readouterr().out
    assert "good" not in out
    assert "checked 2 plans: 1 passed, 1 failed (1 error)\n" in out


@pytest.mark.parametrize(
    ("arguments", "brief"),
    [
        (["a.yaml"], True),
        (["--fail-on=warning", "a.yaml"], True),
        (["--format=concise", "a.yaml"], False),
        (["--format", "json", "a.yaml"], False),
    ],
)
def test_hooks_are_brief_unless_told_otherwise(
    arguments: list[str], brief: bool, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hook's own arguments choose what is printed."""
    monkeypatch.chdir(tmp_path)
    write_over(tmp_path, "a")
    assert main(["hook", *arguments]) == 1
    assert ("all of it: memcheck check a.yaml" in capsys.readouterr().out) == brief


@pytest.mark.parametrize(
    "stated",
    [
        ["--gpu", "t4"],
        ["--gpu", "t4", "--nodes", "2", "--set", "training.micro_batch_size=64"],
        ["--gpu", "t4", "--from", "trl", "--define", "N=2"],
    ],
    ids=" ".join,
)
def test_the_command_repeats_what_was_stated(
    stated: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that was checked for a GPU is shown in full for the same GPU; so is a launch line."""
    monkeypatch.chdir(tmp_path)
    line = "torchrun --nproc_per_node $N -m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-7B --max_length 1024 --bf16 --per_device_train_batch_size 1"
    line = line if "--define" in stated else line.replace("$N", "1")
    (tmp_path / "run.sh").write_text(f"{line}\n")
    assert main(["check", "--format", "brief", *stated, "run.sh"]) == 1
    assert f"all of it: memcheck check {' '.join(stated)} run.sh" in capsys.readouterr().out
    if "--define" not in stated:
        assert main(["check", "--format", "brief", *stated, "--", *line.split()]) == 1
        assert f"all of it: memcheck check {' '.join(stated)} -- torchrun" in capsys.readouterr().out
