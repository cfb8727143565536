"""A key that states its own default: what is provable, and what is left alone."""

from __future__ import annotations

import pytest

from memcheck.cli.review.fix import fix_file
from memcheck.judge import Gate, check_file
from memcheck.plan.finding import Finding

GATE = Gate(profile="review")
PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware:
  gpu: h100-80gb
  gpus_per_node: 8
parallelism:
  zero_stage: 3
{keys}training:
  framework: huggingface
  micro_batch_size: 1
  sequence_length: 4096
  activation_checkpointing: full
{training}"""


def redundant(keys: str = "", training: str = "") -> list[Finding]:
    """The findings of the rule."""
    results, traces = check_file("plan.yaml", PLAN.format(keys=keys, training=training).encode(), GATE)
    assert traces == []
    return [finding for result in results for finding in result.findings if finding.code == "MEM017"]


@pytest.mark.parametrize(
    ("keys", "training", "pointers"),
    [
        ("  tensor: 1\n", "", ["/parallelism/tensor"]),
        ("  tensor: 1\n  data: auto\n", "", ["/parallelism/tensor", "/parallelism/data"]),
        ("  tensor: 2\n", "", []),
        ("  reshard_after_forward: true\n", "", ["/parallelism/reshard_after_forward"]),
        ("  reshard_after_forward: false\n", "", []),
        ("", "  gradient_accumulation_steps: 1\n", ["/training/gradient_accumulation_steps"]),
        ("", "  precision: bf16-mixed\n", []),
        ("", "  compile: false\n", ["/training/compile"]),
        ("", "  compile: true\n", []),
        ("", "  optimizer: {name: adamw, offload: none}\n", ["/training/optimizer/offload"]),
        ("", "  loss: {kind: standard, upcast: true}\n", ["/training/loss/kind"]),
        ("", "  freeze: []\n", ["/training/freeze"]),
    ],
)
def test_only_the_default_of_the_format_is_redundant(keys: str, training: str, pointers: list[str]) -> None:
    """A framework's own default, and a value that is not the default, say something."""
    assert [finding.pointer for finding in redundant(keys, training)] == pointers


def test_the_framework_is_never_redundant() -> None:
    """The default framework is stated in the plan of these tests, and nobody is told to remove it."""
    assert redundant() == []


@pytest.mark.parametrize(
    "training",
    [
        "  <<: {compile: false}\n",
        "  compile: &off false\n  expandable_segments: *off\n",
    ],
)
def test_what_is_brought_in_is_left_alone(training: str) -> None:
    """A merge key or an anchor can give a default a meaning, so that no edit is offered."""
    assert all(finding.fix == () for finding in redundant(training=training))


@pytest.mark.parametrize(
    ("keys", "after"),
    [
        ("  tensor: 1\n", ""),
        ("  tensor: 1   \n", ""),
        ("  tensor: 1\n  pipeline: 1\n  context: 1\n", ""),
        ("  # one is enough\n  tensor: 1\n", "  # one is enough\n  tensor: 1\n"),
        ("  tensor: 1  # one is enough\n", "  tensor: 1  # one is enough\n"),
        ("  tensor: &one 1\n", "  tensor: &one 1\n"),
        ("  tensor:\n    1\n", "  tensor:\n    1\n"),
    ],
)
def test_the_line_goes(keys: str, after: str) -> None:
    """The whole line, with nothing of its neighbours; what has a comment or an anchor stays for its author."""
    fixed = fix_file("plan.yaml", PLAN.format(keys=keys, training="").encode(), GATE)
    assert fixed.data.decode() == PLAN.format(keys=after, training="")


@pytest.mark.parametrize(
    ("policy", "after"),
    [
        ("{overhead: modeled, fail_above: 95%}", "{fail_above: 95%}"),
        ("{ fail_above: 95% ,overhead: modeled }", "{ fail_above: 95% }"),
        ("{fail_above: 95%,  overhead: modeled,  warn_above: 0.9}", "{fail_above: 95%,  warn_above: 0.9}"),
        ("{overhead: modeled}", "{overhead: modeled}"),
        ("{overhead: 'modeled', fail_above: 95%}", "{fail_above: 95%}"),
    ],
)
def test_its_part_of_a_flow_mapping_goes(policy: str, after: str) -> None:
    """With one comma, and never the last key of a mapping."""
    text = PLAN.format(keys="", training="") + "policy: {}\n"
    fixed = fix_file("plan.yaml", text.replace("policy: {}", f"policy: {policy}").encode(), GATE)
    assert fixed.data.decode() == text.replace("policy: {}", f"policy: {after}")


def test_the_last_line_and_its_end() -> None:
    """A file without a last line end loses the key, and keeps its other lines as they are."""
    text = PLAN.format(keys="", training="  compile: false").encode()
    assert fix_file("plan.yaml", text, GATE).data == PLAN.format(keys="", training="").encode()
    crlf = PLAN.format(keys="  tensor: 1\n", training="").replace("\n", "\r\n").encode()
    assert fix_file("plan.yaml", crlf, GATE).data == PLAN.format(keys="", training="").replace("\n", "\r\n").encode()


def test_a_key_that_stands_twice_is_left_alone() -> None:
    """Taking out the second `tensor` would bring back the first, which is another job."""
    assert redundant("  tensor: 2\n  tensor: 1\n") == []


def test_the_gate_does_not_mind() -> None:
    """Without the review profile neither the finding nor its fix exists."""
    data = PLAN.format(keys="  tensor: 1\n", training="").encode()
    assert fix_file("plan.yaml", data, Gate()).data == data
