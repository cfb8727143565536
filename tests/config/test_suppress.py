"""Suppressions in plans, as ``check`` treats them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from memcheck.config.find import Settings
from memcheck.judge import Gate, check_file
from memcheck.what_if import with_remedies

PLAN = """\
memcheck: 1
model: llama-3.2-1b
hardware:
  gpu: h100-80gb
parallelism:
  zero_stage: 3{behind}
training:
  framework: huggingface
  micro_batch_size: 1
  sequence_length: 2048
  activation_checkpointing: full
"""
IGNORE = "# memcheck: ignore[MEM208] shared with a larger job"


def check(text: str, path: str = "plan.yaml", **gate: object) -> list[str]:
    """The codes found in a file, in the order of reports."""
    results, traces = check_file(path, text.encode(), Gate(**gate))
    assert traces == []
    return [finding.code for result in results for finding in result.findings]


def plan(behind: str = "", **changes: str) -> str:
    """The plan, with something behind its sharding."""
    text = PLAN.format(behind=behind)
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return text


def test_the_finding_is_there() -> None:
    """Without a comment, the plan has one finding."""
    assert check(plan()) == ["MEM208"]


@pytest.mark.parametrize(
    "text",
    [
        plan(f"  {IGNORE}"),
        plan().replace("  zero_stage", f"  {IGNORE}\n  zero_stage"),
        plan().replace("  zero_stage", f"{IGNORE}\n  # prose\n  zero_stage"),
        plan().replace("zero_stage: 3", f"zero_stage:  {IGNORE}\n    3"),
        plan().replace("zero_stage: 3", f"zero_stage:\n    3  {IGNORE}"),
        plan().replace("zero_stage: 3", f"zero_stage: &s 3\n  tensor: 1  {IGNORE}"),
        plan(f"  {IGNORE}").replace("\n", "\r\n"),
        "\ufeff" + plan(f"  {IGNORE}"),
    ],
    ids=["behind", "above", "above a comment", "key of a value below", "value", "other place", "crlf", "bom"],
)
def test_a_comment_hides_the_finding(text: str) -> None:
    """On the finding's line, its key's, that of a place it names, or on the line above."""
    assert check(text) == []


def test_another_rule_or_line_is_not_hidden() -> None:
    """Only the named rule on that line is hidden; and what hides nothing is reported."""
    assert check(plan("  # memcheck: ignore[MEM209] why not")) == ["MEM208", "MEM031"]
    assert check(plan().replace("gpu:", f"{IGNORE}\n  gpu:")) == ["MEM031", "MEM208"]


def test_a_rule_that_did_not_look_leaves_its_comment_alone() -> None:
    """Whether a comment for a rule of another profile hides anything is not known in the gate."""
    assert check(plan("  # memcheck: ignore[MEM207] why not")) == ["MEM208"]


def test_without_a_reason_it_hides_nothing() -> None:
    """The finding stays, and the comment is a finding of its own that no comment can hide."""
    assert check(plan("  # memcheck: ignore[MEM208]")) == ["MEM208", "MEM030"]
    assert check(plan("  # memcheck: ignore[MEM208] # memcheck: ignore[MEM030] hush")) == ["MEM208", "MEM030", "MEM031"]


def test_expired() -> None:
    """After its last day a comment hides nothing, and says so; if there is nothing to hide, it is merely unused."""
    past = f"  {IGNORE}, until: 2020-01-31"
    assert check(plan(past)) == ["MEM208", "MEM032"]
    assert check(plan(past).replace("zero_stage: 3", "zero_stage: 0")) == ["MEM031"]
    assert check(plan(f"  {IGNORE}, until: 2999-01-31")) == []


def test_unused_is_only_said_when_it_is_certain() -> None:
    """Not for rules that were not selected, not under other conditions than the file's, not for plans not judged."""
    unused = plan(f"  {IGNORE}").replace("zero_stage: 3", "zero_stage: 0")
    assert check(unused) == ["MEM031"]
    assert check(unused, ignore=("MEM208",)) == []
    assert check(unused, select=("MEM1",)) == []
    assert check(unused, ignore=("MEM031",)) == []
    assert check(unused, changes={"hardware.gpu": "h200"}) == []
    assert check(unused, fail_above=0.9) == []
    assert check(unused.replace("h100-80gb", "h100-81gb")) == ["MEM021"]
    assert check(plan("  # memcheck: ignore[MEM105] it is a debug run")) == ["MEM208"]


def test_what_prevents_the_estimate_cannot_be_hidden() -> None:
    """A plan that was not judged does not pass because of a comment."""
    text = plan().replace("h100-80gb", "h100-81gb  # memcheck: ignore[MEM021] new")
    assert check(text) == ["MEM021"]
    blocked = plan().replace("zero_stage: 3", "tensor: 3  # memcheck: ignore[MEM201] odd")
    assert "MEM201" in check(blocked)


def test_each_document_has_its_own() -> None:
    """In a file of several plans a comment counts where it stands, and is reported there."""
    text = (
        plan(f"  {IGNORE}")
        + "---\n"
        + plan()
        + "---\n# memcheck: ignore[MEM208] above\n"
        + plan(zero_stage="context").replace("context: 3", "context: 1")
    )
    results, _ = check_file("plan.yaml", text.encode(), Gate())
    assert [[finding.code for finding in result.findings] for result in results[:2]] == [[], ["MEM208"]]
    assert [finding.code for finding in results[2].findings] == ["MEM031"]


def test_comment_in_the_base(tmp_path: Path) -> None:
    """A finding that points into the file that is extended is hidden there, and only that file's check calls it unused."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "base.yaml").write_text(plan(f"  {IGNORE}"))
    above = str(tmp_path / "plan.yaml")
    assert check("memcheck: 1\nextends: base.yaml\n", above) == []
    assert check("memcheck: 1\nextends: base.yaml\nparallelism: {zero_stage: 0}\n", above) == []


def test_an_unused_one_carries_its_removal() -> None:
    """The fix takes away the comment and nothing else."""
    text = plan(f"  {IGNORE}").replace("zero_stage: 3", "zero_stage: 0")
    (result,), _ = check_file("plan.yaml", text.encode(), Gate())
    ((edit,),) = [finding.fix for finding in result.findings]
    line = text.splitlines()[edit.span.line - 1]
    assert line[: edit.span.column - 1] + edit.text + line[edit.span.end_column - 1 :] == "  zero_stage: 0"


def test_very_many_unused_ones_are_counted() -> None:
    """A file of nothing but such comments has a report that can be read, and its verdict stays."""
    text = plan().replace("zero_stage: 3", "zero_stage: 0") + f"{IGNORE}\n" * 1500
    (result,), _ = check_file("plan.yaml", text.encode(), Gate())
    about = [finding for finding in result.findings if finding.code == "MEM031"]
    assert len(about) == 1000
    assert sum("so it is with 500 more comments of this file" in finding.message for finding in about) == 1


def test_a_memory_finding_is_hidden_at_any_key_it_names() -> None:
    """Which key a memory finding underlines depends on the cheapest remedy; the plan's first line is as good a place."""
    over = plan(zero_stage="context").replace("context: 3", "context: 1").replace("h100-80gb", "rtx-4090")
    over = over.replace("llama-3.2-1b", "llama-3.1-8b")
    assert check(over, remedies=with_remedies) == ["MEM101"]
    for key in ("memcheck:", "gpu:", "sequence_length:"):
        line = next(each for each in over.splitlines() if key in each)
        text = over.replace(line, f"{line}  # memcheck: ignore[MEM101] only ever traced")
        assert check(text, remedies=with_remedies) == []


def test_severity_of_the_configuration() -> None:
    """The longest entry decides; what prevents the estimate stays an error."""

    def severities(text: str, *severity: tuple[str, str]) -> list[str]:
        settings = Settings(severity=severity)
        (result,), _ = check_file("plan.yaml", text.encode(), Gate(settings=settings))
        return [f"{result.status} {finding.severity}" for finding in result.findings]

    assert severities(plan()) == ["passed warning"]
    assert severities(plan(), ("MEM208", "error")) == ["failed error"]
    assert severities(plan(), ("MEM208", "info"), ("MEM2", "error")) == ["passed info"]
    assert severities(plan().replace("h100-80gb", "h100-81gb"), ("MEM", "info")) == ["error error"]


def test_patterns_of_the_configuration() -> None:
    """A pattern means a file name anywhere, or a path below the configuration's folder."""
    settings = Settings(
        per_file_ignores=(("*.draft.yaml", ("MEM1",)), ("old/*", ("MEM208",))), file="team/memcheck.toml"
    )
    assert settings.ignored_for(os.path.join("team", "a", "x.draft.yaml")) == ("MEM1",)
    assert settings.ignored_for(os.path.join("team", "old", "b", "x.draft.yaml")) == ("MEM1", "MEM208")
    assert settings.ignored_for(os.path.join("old", "x.yaml")) == ()
