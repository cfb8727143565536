"""MEM108: up to which row a plan fits whose rows are not packed."""

from __future__ import annotations

import json

import pytest

from memcheck.accounts.estimate import Estimate
from memcheck.config.find import Settings
from memcheck.judge import Gate, check_file
from memcheck.memory.fit import FITS, gpu_fit
from memcheck.report.json import render
from memcheck.rules.result import PlanResult, Report
from memcheck.what_if import with_remedies

PLAN = """
memcheck: 1
model: llama-3-8b
hardware: {{gpu: {gpu}}}
training:
  framework: huggingface
  method: lora
  lora: {{rank: 16, target_modules: all-linear}}
  micro_batch_size: 32
  sequence_length: 4096
  precision: bf16-mixed
  activation_checkpointing: full
  {more}
policy: {{{policy}}}
"""


def judged(
    more: str = "sequences: padded", policy: str = "", gpu: str = "a100-80gb", gate: Gate | None = None
) -> PlanResult:
    """The verdict on the plan."""
    text = PLAN.format(gpu=gpu, more=more, policy=policy)
    (result,), traces = check_file("plan.yaml", text.encode(), gate or Gate())
    assert not traces
    return result


def codes(result: PlanResult) -> list[str]:
    """The rules about memory that found something."""
    return [each.code for each in result.findings if each.code.startswith("MEM1")]


def needed(result: PlanResult) -> Estimate:
    """Its estimate."""
    assert result.estimate is not None
    return result.estimate


@pytest.mark.parametrize("laid", ["padded", "unpacked", "unpacked-masked"])
def test_a_plan_says_up_to_which_row_it_fits(laid: str) -> None:
    """The whole interval fits at that row, as the engine says of a plan that states it, and not at one that is longer."""
    result = judged(f"sequences: {laid}")
    row = needed(result).longest_row
    assert (result.status, result.verdict, codes(result)) == ("passed", "uncertain", ["MEM108"])
    assert 64 <= row < 4096
    assert not row % 8
    assert f"at most {row:,} tokens" in result.findings[0].message
    fits = [gpu_fit(needed(judged(f"sequences: {laid}\n  longest_row: {n}")), 0.95) == FITS for n in (row, row + 8)]
    assert fits == [True, False]


def test_the_figures_are_those_of_the_limit() -> None:
    """What is needed at `sequence_length` stays the answer, and the report has the row beside it."""
    result, full = judged(), judged("sequences: padded\n  longest_row: 4096")
    assert needed(result).needed_bytes == needed(full).needed_bytes
    (plan,) = json.loads(render(Report("", (result,))))["plans"]
    assert plan["estimate"]["longest_row"] == needed(result).longest_row
    (plan,) = json.loads(render(Report("", (full,))))["plans"]
    assert plan["estimate"]["longest_row"] is None


@pytest.mark.parametrize(
    ("more", "gpu"),
    [
        ("sequences: packed", "a100-80gb"),
        ("sequences: padded\n  longest_row: 4096", "a100-80gb"),
        ("sequences: padded", "rtx-3060"),
        ("", "a100-80gb"),
    ],
)
def test_full_rows_a_stated_row_and_short_rows_that_do_not_fit_are_errors(more: str, gpu: str) -> None:
    """Then no row makes the plan fit, or the plan says which one it has."""
    result = judged(more, gpu=gpu)
    assert (result.status, result.verdict, codes(result)) == ("failed", "does_not_fit", ["MEM101"])


@pytest.mark.parametrize(
    ("policy", "configured", "status"),
    [
        ("", None, "passed"),
        ("unpacked: warn", None, "passed"),
        ("unpacked: fail", None, "failed"),
        ("", "fail", "failed"),
        ("unpacked: warn", "fail", "passed"),
        ("unpacked: fail", "warn", "failed"),
    ],
)
def test_the_policy_decides(policy: str, configured: str | None, status: str) -> None:
    """The plan's goes before the configuration's; either way the finding is the same."""
    result = judged(policy=policy, gate=Gate(settings=Settings(unpacked=configured)))
    assert (result.status, codes(result)) == (status, ["MEM108"])


@pytest.mark.slow
def test_remedies_fit_at_the_limit() -> None:
    """Each remedy, computed again, fits whole with rows at their limit; the way without a change stays in the help."""
    (found,) = [each for each in judged(gate=Gate(remedies=with_remedies)).findings if each.code == "MEM108"]
    assert found.remedies
    assert all(each.high_utilization <= 0.95 for each in found.remedies)
    assert "state the longest row" in found.help.split("\n")[1]


@pytest.mark.parametrize(
    ("policy", "configured", "uncertain", "unpacked", "status"),
    [
        ("", None, None, None, "passed"),
        ("", None, None, "fail", "failed"),
        ("", None, "fail", None, "failed"),
        ("", None, "fail", "warn", "passed"),
        ("uncertain: fail", None, None, None, "failed"),
        ("unpacked: fail", None, None, "warn", "passed"),
        ("unpacked: warn", None, None, "fail", "failed"),
        ("unpacked: warn", None, "fail", None, "passed"),
        ("", "fail", None, "warn", "passed"),
        ("", "warn", "fail", None, "passed"),
    ],
)
def test_what_the_command_line_says_of_short_rows(
    policy: str, configured: str | None, uncertain: str | None, unpacked: str | None, status: str
) -> None:
    """`--unpacked` goes before the plan, the plan before the configuration; `uncertain` decides where none is stated."""
    gate = Gate(settings=Settings(unpacked=configured), uncertain=uncertain, unpacked=unpacked)
    result = judged(policy=policy, gate=gate)
    assert (result.status, result.verdict, codes(result)) == (status, "uncertain", ["MEM108"])
    help = result.findings[0].help
    assert ("--unpacked fail" in help) == (status == "passed")
