"""Findings about values that were written elsewhere name the place where the plan takes them in."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding

BASE = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 3}
training: {framework: pytorch, micro_batch_size: 1, sequence_length: 4096}
"""


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bases are found anywhere in it."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def findings(text: str, code: str) -> list[Finding]:
    """What one rule finds in a plan."""
    plans, traces = check_file("plan.yaml", text.encode(), Gate())
    assert traces == []
    return [finding for plan in plans for finding in plan.findings if finding.code == code]


def uses(finding: Finding) -> list[tuple[str, str, int]]:
    """The places where the plan takes the value in."""
    found = [(label, where.path, where.span.line) for label, where in finding.related]
    return [use for use in found if use[0] in {"used here", "extended here"}]


def test_value_of_an_anchor_names_its_use() -> None:
    """The finding points at what was written, and at the alias that brought it here."""
    text = BASE.replace("gpus_per_node: 3", "gpus_per_node: &n 3") + "parallelism: {tensor: *n}\n"
    (finding,) = findings(text, "MEM202")
    assert finding.location.span.line == 3
    assert finding.location.note == "set at line 3 through `*n`"
    assert uses(finding) == [("used here", "plan.yaml", 5)]


def test_value_of_a_merge_key_names_it() -> None:
    """A merge key brings in what stands in another mapping."""
    text = BASE + "shared: &mp {tensor: many}\nparallelism:\n  <<: *mp\n"
    (finding,) = findings(text, "MEM013")
    assert finding.location.note == "set at line 5 through `<<: *mp`"
    assert uses(finding) == [("used here", "plan.yaml", 7)]


def test_value_of_a_base_names_the_plan() -> None:
    """Whoever reads about a line of the base also reads which plan extends it."""
    Path("base.yaml").write_text(BASE + "parallelism: {tensor: 3}\n", encoding="utf-8")
    (finding,) = findings("memcheck: 1\nextends: base.yaml\n", "MEM202")
    assert (finding.location.path, finding.location.note) == ("base.yaml", "from base.yaml")
    assert uses(finding) == [("extended here", "plan.yaml", 2)]


def test_value_of_the_plan_itself_names_nothing_more() -> None:
    """What stands in the plan needs no explanation, even where the rest comes from a base."""
    Path("base.yaml").write_text(BASE, encoding="utf-8")
    (finding,) = findings("memcheck: 1\nextends: base.yaml\nparallelism: {tensor: 3}\n", "MEM202")
    assert finding.location.path == "plan.yaml"
    assert uses(finding) == []


def test_a_use_is_named_once() -> None:
    """Findings of the schema, which name it themselves, do not name it twice."""
    text = BASE.replace("micro_batch_size: 1", "micro_batch_size: &n many") + "name: *n\n"
    text = text.replace("name: *n", "parallelism: {tensor: *n}")
    for finding in findings(text, "MEM013"):
        assert len(uses(finding)) <= 1
    assert any(uses(finding) for finding in findings(text, "MEM013"))
