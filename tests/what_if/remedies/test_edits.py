"""Text edits are made where their place is certain, and nowhere else."""

from __future__ import annotations

import pytest

from memcheck.plan.finding import Edit, Span
from memcheck.plan.read import with_changes
from memcheck.plan.value_edits import apply_edits, edits
from tests.what_if.remedies.plans import read

PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {gpu: h100-80gb, gpus_per_node: 8}
training:
  framework: huggingface   # the Trainer
  micro_batch_size: 4
  sequence_length: 8192
"""


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"training.micro_batch_size": 2}, "  micro_batch_size: 2"),
        ({"training.framework": "pytorch"}, "  framework: pytorch   # the Trainer"),
        ({"training.loss": "fused-linear"}, "  loss: fused-linear"),
        (
            {"training.optimizer": {"name": "adamw", "implementation": "fused"}},
            "  optimizer: {name: adamw, implementation: fused}",
        ),
        ({"parallelism.zero_stage": 3}, "  zero_stage: 3"),
        ({"hardware.nodes": 2}, "hardware: {nodes: 2, gpu: h100-80gb, gpus_per_node: 8}"),
        ({"hardware.gpu": "h200"}, "hardware: {gpu: h200, gpus_per_node: 8}"),
        ({"hardware.gpu": "5090"}, 'hardware: {gpu: "5090", gpus_per_node: 8}'),
        ({"training.expandable_segments": True}, "  expandable_segments: true"),
        ({"training.offload.parameters": "cpu"}, "  offload: {parameters: cpu}"),
        (
            {"training.options.a": 1, "training.loss": "chunked", "training.options.b": "per_layer"},
            "  options: {a: 1, b: per_layer}",
        ),
        ({"policy.limits.a.b": 1, "policy.limits.a.c": 2}, "  limits: {a: {b: 1, c: 2}}"),
    ],
)
def test_a_value_is_written_in_its_place(changes: dict[str, object], line: str) -> None:
    """Values are replaced in place and missing keys are added, with comments and order kept."""
    document = read(PLAN)
    made = edits(document, changes, with_changes(document, changes).values)
    assert made
    assert line in apply_edits(document.sources["plan.yaml"], made).splitlines()


def test_several_changes_are_edits_of_one_file() -> None:
    """Two missing keys of one section are added together."""
    document = read(PLAN)
    changes = {"training.micro_batch_size": 1, "training.loss": "chunked", "training.gradient_accumulation_steps": 4}
    made = edits(document, changes, with_changes(document, changes).values)
    text = apply_edits(document.sources["plan.yaml"], made)
    assert "  loss: chunked\n  gradient_accumulation_steps: 4\n  framework: huggingface   # the Trainer\n" in text


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (PLAN.replace("micro_batch_size: 4", "offload: null"), {"training.offload.parameters": "cpu"}),
        (
            "x-base: &size 4\n" + PLAN.replace("micro_batch_size: 4", "micro_batch_size: *size"),
            {"training.micro_batch_size": 2},
        ),
    ],
    ids=["empty section", "alias"],
)
def test_uncertain_places_are_left_alone(text: str, changes: dict[str, object]) -> None:
    """What would need rearranging, or would change other values as well, has no edit."""
    document = read(text)
    assert edits(document, changes, with_changes(document, changes).values) == ()


def test_edits_apply_from_the_end() -> None:
    """Earlier edits do not shift later ones."""
    made = (Edit(Span(1, 1, 1, 2), "AA"), Edit(Span(1, 3, 1, 3), "-"), Edit(Span(2, 1, 2, 4), ""))
    assert apply_edits(("abc", "def", "ghi"), made) == "AAb-c\n\nghi\n"
