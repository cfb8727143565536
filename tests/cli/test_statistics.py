"""``--statistics``: counts per rule, and the fullest plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main
from memcheck.edge.screen import Screen
from memcheck.report.screens import statistics
from tests.cli.plans import write, write_broken, write_over
from tests.report import samples

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three plans: one is fine, one does not fit, one cannot be read."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path)
    write_over(tmp_path)
    write_broken(tmp_path)


def test_rules_are_counted_and_plans_ranked(capsys: Capture) -> None:
    """Behind the report: findings and plans per rule, then the share of each plan, the fullest first."""
    assert main(["check", ".", "--format", "concise", "--statistics"]) == 1
    report, counts, shares = capsys.readouterr().out.split("\n\n")
    assert "checked 3 plans" in report
    assert counts.splitlines() == [
        "findings  plans  rule",
        "       1      1  error    MEM011 unknown-key",
        "       1      1  error    MEM101 exceeds-capacity",
    ]
    head, over, good, rest = shares.splitlines()
    assert head == "highest utilization"
    assert [line.split()[-2] for line in (over, good)] == ["over", "good"]
    assert float(over.split()[0].rstrip("%").replace(",", "")) > 100
    assert rest == "1 plan without an estimate"


def test_reports_for_programs_stay_what_they_are(capsys: Capture) -> None:
    """Where stdout carries JSON, the counts go to stderr."""
    assert main(["check", ".", "--format", "json", "--statistics"]) == 1
    streams = capsys.readouterr()
    assert json.loads(streams.out)["summary"]["plans"] == 3
    assert streams.err.startswith("findings  plans  rule\n")


def test_files_leave_stdout_to_the_counts(capsys: Capture) -> None:
    """With every report in a file, the counts are all that is printed."""
    assert main(["check", ".", "--format", "sarif=out.sarif", "--statistics"]) == 1
    assert capsys.readouterr().out.startswith("findings  plans  rule\n")
    assert json.loads(Path("out.sarif").read_text(encoding="utf-8"))["version"] == "2.1.0"


def test_clean_runs_are_counted_too(capsys: Capture) -> None:
    """With ``--quiet`` nothing stands before the counts."""
    assert main(["check", "good.yaml", "--quiet", "--statistics"]) == 0
    assert capsys.readouterr().out.startswith("no findings\n\nhighest utilization\n")


def test_a_rule_of_two_severities_is_two_rows() -> None:
    """Findings are counted, and the plans that have one; the gravest rows come first."""
    mild = samples.over()._replace(severity="warning")
    plan = samples.result("failed", (samples.over(), mild, mild))
    lines = statistics(samples.report(plan, plan), Screen()).splitlines()
    assert lines[1:3] == [
        "       2      2  error    MEM101 exceeds-capacity",
        "       4      2  warning  MEM101 exceeds-capacity",
    ]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_rows_fit_the_screen(columns: int) -> None:
    """The place of a plan is left out where there is no room for it, in all rows alike."""
    lines = statistics(samples.mixed(), Screen(columns)).splitlines()
    assert max(map(len, lines)) <= columns
    shares = [line for line in lines if line.startswith("   ") and "%" in line]
    assert len({samples.PATH in line for line in shares}) == 1
