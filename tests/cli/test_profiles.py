"""Which rules look at a plan: profiles, and rules that are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memcheck.__main__ import main

Capture = pytest.CaptureFixture[str]

PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
parallelism: {pipeline: 8}
training: {framework: megatron, micro_batch_size: 1, sequence_length: 4096, gradient_accumulation_steps: 2}
"""


@pytest.fixture(autouse=True)
def in_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a repository with one plan, whose pipeline idles."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "plan.yaml").write_text(PLAN, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(capsys: Capture, *arguments: str) -> list[str]:
    """The codes of the findings."""
    main(["check", ".", "--format", "json", *arguments])
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    return [each["code"] for each in plan["diagnostics"]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", False),
        ("--profile gate", False),
        ("--profile review", True),
        ("--profile=research", True),
        ("--profile review --select MEM2", True),
        ("--profile review --select MEM1", False),
        ("--profile review --ignore MEM217", False),
        ("--profile review --ignore MEM2", False),
        ("--select MEM2", False),
        ("--select MEM", False),
        ("--select MEM217", True),
        ("--select pipeline-bubble", True),
        ("--extend-select MEM2", False),
        ("--extend-select MEM217", True),
    ],
)
def test_a_rule_beyond_the_gate(capsys: Capture, arguments: str, expected: bool) -> None:
    """It counts in its profile and those behind it, and anywhere if it is named in full."""
    assert ("MEM217" in found(capsys, *arguments.split())) is expected


def test_the_profile_of_the_configuration(tmp_path: Path, capsys: Capture) -> None:
    """The nearest configuration may choose a profile; the command line goes before it, and both are shown."""
    (tmp_path / "memcheck.toml").write_text('profile = "review"', encoding="utf-8")
    assert found(capsys) == ["MEM217"]
    assert found(capsys, "--profile", "gate") == []
    assert main(["check", "--show-settings", "plan.yaml"]) == 0
    assert 'profile = "review"  # memcheck.toml' in capsys.readouterr().out
    assert main(["check", "--show-settings", "plan.yaml", "--profile", "research"]) == 0
    assert 'profile = "research"  # command line' in capsys.readouterr().out


def test_an_unknown_profile(tmp_path: Path, capsys: Capture) -> None:
    """Neither place takes a word that is no profile."""
    assert main(["check", "--profile", "pedantic"]) == 2
    assert "'pedantic' is not one of 'gate', 'review', 'research'" in capsys.readouterr().err
    (tmp_path / "memcheck.toml").write_text('profile = "pedantic"', encoding="utf-8")
    assert main(["check"]) == 2
    assert "memcheck.toml: profile: 'pedantic' is not one of gate, review, research" in capsys.readouterr().err


def test_a_comment_is_unused_only_where_its_rule_looked(tmp_path: Path, capsys: Capture) -> None:
    """What hides a finding of the review profile is no litter in the gate, and is used in review."""
    comment = "# memcheck: ignore[MEM217] the batch may not grow"
    (tmp_path / "plan.yaml").write_text(PLAN.replace("parallelism", f"{comment}\nparallelism"), encoding="utf-8")
    assert found(capsys) == []
    assert found(capsys, "--profile", "review") == []
    idle = PLAN.replace("steps: 2", "steps: 32").replace("parallelism", f"{comment}\nparallelism")
    (tmp_path / "plan.yaml").write_text(idle, encoding="utf-8")
    assert found(capsys) == []
    assert found(capsys, "--profile", "review") == ["MEM031"]


def test_the_list_of_rules_states_both(capsys: Capture) -> None:
    """``list rules`` has profile and precision, for people and for programs."""
    assert main(["list", "rules", "--format", "json"]) == 0
    rules = {rule["code"]: rule for rule in json.loads(capsys.readouterr().out)}
    assert (rules["MEM101"]["profile"], rules["MEM101"]["precision"]) == ("gate", "measured")
    assert (rules["MEM201"]["profile"], rules["MEM201"]["precision"]) == ("gate", "provable")
    assert (rules["MEM217"]["profile"], rules["MEM217"]["precision"]) == ("review", "heuristic")
    assert main(["list", "rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["code", "name", "severity", "profile", "precision", "summary"]
