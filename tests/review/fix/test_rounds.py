"""Which fixes are made, and which are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from memcheck.cli.review.fix import Fixed, fix_file
from memcheck.judge import Gate, check_file
from memcheck.what_if import with_remedies
from tests.cli.plans import GOOD, write, write_over

PLAN = GOOD.format(name="plan").encode()
GATE = Gate()


def fix(data: bytes, path: str = "plan.yaml", **gate: object) -> Fixed:
    """The file after its safe fixes."""
    fixed = fix_file(path, data, GATE._replace(**gate))
    assert fixed.traces == ()
    return fixed


def test_nothing_to_fix() -> None:
    """A clean plan stays the bytes it is."""
    assert fix(PLAN) == Fixed(PLAN)


def test_one_mistake_behind_another() -> None:
    """A value under a misspelt key is mended in the next round."""
    data = PLAN.replace(b"micro_batch_size: 1", b"micro_batchsize: '1'").replace(b"training:", b"trainng:")
    fixed = fix(data)
    assert fixed.data == PLAN
    assert [each.finding.code for each in fixed.fixes] == ["MEM011", "MEM011", "MEM013"]


def test_a_fix_that_would_break_the_file_is_refused() -> None:
    """Two misspelt keys that mean one: mending both would state a key twice, so that one is left."""
    fixed = fix(PLAN.replace(b"  micro_batch_size: 1\n", b"  micro_batchsize: 1\n  micro_batch_sizes: 1\n"))
    assert fixed.data == PLAN.replace(b"  micro_batch_size: 1\n", b"  micro_batch_size: 1\n  micro_batch_sizes: 1\n")
    assert len(fixed.fixes) == 1


def test_an_alias_is_mended_once() -> None:
    """The anchor's value is edited where it stands, and the anchor stays."""
    data = PLAN.replace(b"micro_batch_size: 1", b"micro_batch_size: &n '1'\n  gradient_accumulation_steps: *n")
    assert fix(data).data == data.replace(b"&n '1'", b"&n 1")


def test_ignored_findings_are_not_fixed() -> None:
    """What is not shown is not touched."""
    data = PLAN.replace(b"memcheck: 1\n", b"memcheck: 1  # memcheck: ignore[MEM208] why\n")
    assert fix(data).data == PLAN
    assert fix(data, ignore=("MEM031",)).data == data


def test_files_that_are_extended_are_left_alone(tmp_path: Path) -> None:
    """A mistake in the base is for the base's own check: fixing the plan over it changes neither."""
    (tmp_path / ".git").mkdir()
    base = tmp_path / "base.yaml"
    base.write_bytes(PLAN.replace(b"micro_batch_size: 1", b"micro_batch_size: '1'"))
    above = b"memcheck: 1\nextends: base.yaml\nhardware: {gpus_per_node: '8'}\n"
    assert fix(above, str(tmp_path / "plan.yaml")).data == above.replace(b"'8'", b"8")
    assert b"'1'" in base.read_bytes()


def test_unreadable_files_stay(tmp_path: Path) -> None:
    """What is no text or no YAML has no fix."""
    for data in (b"memcheck: 1\n\xff\xfe", b"memcheck: [1\n", b"\xff\xfe", b""):
        assert fix(data) == Fixed(data)


def test_remedies_only_when_unsafe(tmp_path: Path) -> None:
    """A remedy changes the job: it is written only with ``unsafe``, then the plan passes, and doing it again is idle."""
    data = write_over(tmp_path).read_bytes().replace(b"rtx-4090", b"a100-40gb").replace(b"\n", b"\r\n")
    gate = Gate(remedies=with_remedies)
    assert fix_file("plan.yaml", data, gate) == Fixed(data)
    fixed = fix_file("plan.yaml", data, gate, unsafe=True)
    assert [each.finding.code for each in fixed.fixes] == ["MEM101"]
    assert fixed.data != data
    assert fixed.data.count(b"\n") == fixed.data.count(b"\r\n")
    assert fix_file("plan.yaml", fixed.data, gate, unsafe=True) == Fixed(fixed.data)


def test_a_warning_is_no_reason_to_change_the_job(tmp_path: Path) -> None:
    """A plan that passes with a warning has remedies, and none of them is written."""
    data = write(tmp_path).read_bytes() + b"policy: {fail_above: 100%, warn_above: 20%}\n"
    (result,), _ = check_file("plan.yaml", data, Gate(remedies=with_remedies))
    assert [(each.code, bool(each.remedies)) for each in result.findings] == [("MEM103", True)]
    assert fix_file("plan.yaml", data, Gate(remedies=with_remedies), unsafe=True) == Fixed(data)


@pytest.mark.slow
def test_host_memory_is_mended_by_what_the_host_needs_less_of(tmp_path: Path) -> None:
    """Taking states back onto the GPU needs more of it and less of the node, which the finding is about."""
    text = write(tmp_path, framework="deepspeed", zero_stage="2").read_text(encoding="utf-8")
    text = text.replace("gpus_per_node: 8", "gpus_per_node: 8\n  host_memory_gib: 64")
    data = (text + "  optimizer: {name: adamw, offload: cpu}\n").encode()
    fixed = fix_file("plan.yaml", data, Gate(remedies=with_remedies), unsafe=True)
    assert [each.finding.code for each in fixed.fixes] == ["MEM106"]
    (result,), _ = check_file("plan.yaml", fixed.data, Gate())
    assert result.status == "passed"
