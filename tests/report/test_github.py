"""Annotations and the log of GitHub Actions."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from memcheck.edge.screen import Screen
from memcheck.plan.finding import Finding
from memcheck.report.github import escape, escape_property, position, render, workflow_commands
from memcheck.rules.result import PlanResult, Report
from tests.report import samples

COMMAND = re.compile(r"^::(error|warning|notice) (.*?)::(.*)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def outside_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that run in Actions see what they would see elsewhere."""
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


def many(count: int, severity: str = "error") -> Report:
    """Plans with one finding each, the fullest last."""

    def plan(index: int) -> PlanResult:
        finding = Finding("MEM101", "exceeds-capacity", severity, f"plan {index}", samples.at(1, 1, 2))
        return samples.result("failed", (finding,), estimate=samples.estimate(40.0 + index))

    return samples.report(*(plan(index) for index in range(count)))


def test_values_survive_the_runner() -> None:
    """Percent signs, line breaks, colons and commas are escaped as the runner unescapes them."""
    assert escape("50%\r\nrest") == "50%25%0D%0Arest"
    assert escape_property("a:b,c%") == "a%3Ab%2Cc%25"


def test_annotation_names_the_place_and_the_rule() -> None:
    """File, lines, columns, a title, and a message that can be read in the log alone."""
    (line,) = workflow_commands(
        samples.report(samples.result("failed", (samples.over(),), estimate=samples.estimate()))
    )
    kind, properties, message = COMMAND.match(line).groups()
    assert kind == "error"
    assert properties == (
        "file=plans/llama-3.1-8b-docs-sft.yaml,line=11,endLine=11,col=3,endColumn=21,title=MEM101 exceeds-capacity"
    )
    assert message.startswith("plans/llama-3.1-8b-docs-sft.yaml:11:3: MEM101 needs 54.31 GiB per GPU")
    told = "remedy (same hardware, same result): training.activation_checkpointing: none -> full   137.9%25 -> 79.2%25"
    assert told in message


def test_columns_only_within_one_line() -> None:
    """The runner drops columns of a span over several lines, so they are not sent; an empty span keeps one column."""
    assert position(samples.at(3, 5, 9, end_line=6)) == {"line": 3, "endLine": 6}
    assert position(samples.at(3, 5, 5)) == {"line": 3, "endLine": 3, "col": 5, "endColumn": 5}


def test_budget_of_annotations_is_kept() -> None:
    """Nine of a kind, the worst first, and one notice that counts the rest."""
    lines = workflow_commands(many(40))
    assert len(lines) == 10
    assert [COMMAND.match(line)[1] for line in lines] == ["error"] * 9 + ["notice"]
    assert "plan 39" in lines[0]
    assert "31 more findings" in lines[-1]
    assert "checked 40 plans: 0 passed, 40 failed (40 errors)" in lines[-1]


def test_every_kind_has_its_own_budget() -> None:
    """Errors, warnings and notices: never ten of one kind: what the step itself says has room."""
    report = samples.report(*(plan for severity in ("error", "warning", "info") for plan in many(12, severity).plans))
    kinds = [COMMAND.match(line)[1] for line in workflow_commands(report)]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"error": 9, "warning": 9, "notice": 9}
    assert kinds[:9] == ["error"] * 9


def test_plans_that_cannot_be_read_come_first() -> None:
    """A plan without an estimate is worse than any full one."""
    report = samples.report(*many(12).plans, samples.broken())
    assert "MEM010" in workflow_commands(report)[0]


def test_message_is_cut_where_the_runner_cuts() -> None:
    """A message has at most 4096 characters."""
    finding = samples.over()._replace(message="x" * 9000)
    (line,) = workflow_commands(samples.report(samples.result("failed", (finding,))))
    assert len(COMMAND.match(line)[3]) <= 4096


def test_log_is_grouped_by_file() -> None:
    """Each file's human report is folded under a title that tells its verdict; the summary comes last."""
    text = render(samples.mixed(), Screen(100), "token")
    assert text.count("::group::") == text.count("::endgroup::") == 1
    assert text.startswith(
        "::group::plans/llama-3.1-8b-docs-sft.yaml: failed by MEM101, MEM010, 137.9%25 of capacity\n"
    )
    assert text.endswith("checked 4 plans: 2 passed, 2 failed (2 errors, 1 warning)\n")


def test_user_text_cannot_issue_commands() -> None:
    """What comes from a plan stands between stop-commands and its token, which nobody can guess."""
    evil = "::set-output name=x::y\n::error::boo"
    plan = samples.result("failed", (samples.over()._replace(message=evil, help=evil),), name=evil, path="a\n::x::y")
    text = render(samples.report(plan), Screen(100))
    token = re.search(r"^::stop-commands::(memcheck-[0-9a-f]{32})$", text, re.MULTILINE)[1]
    stopped = re.sub(rf"^::stop-commands::{token}$.*?^::{token}::$", "", text, flags=re.MULTILINE | re.DOTALL)
    commands = [line for line in stopped.splitlines() if line.lstrip().startswith("::")]
    assert [line.split("::")[1].split()[0] for line in commands] == ["group", "endgroup", "error"]
    assert render(samples.report(plan), Screen(100)) != text


def test_paths_are_relative_to_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that runs in a subfolder still annotates the right file; a path outside is left alone."""
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    inside = samples.over()._replace(location=samples.at(1, 1, 2, path="plan.yaml"))
    outside = samples.over()._replace(location=samples.at(1, 1, 2, path=os.path.abspath("/elsewhere.yaml")))
    lines = workflow_commands(samples.report(samples.result("failed", (inside, outside))))
    assert "file=sub/plan.yaml," in lines[0]
    assert "file=/elsewhere.yaml," in lines[1]
