"""What a memory finding says of the keys that take part: who holds the states, what is kept for the backward."""

from __future__ import annotations

import pytest

from memcheck.judge import Gate, check_file

PLAN = """\
memcheck: 1
model: llama-3.1-8b
hardware: {{gpu: rtx-4090, gpus_per_node: {gpus}}}
parallelism:
  zero_stage: {stage}
training:
  framework: deepspeed
  micro_batch_size: 4
  sequence_length: 8192
  activation_checkpointing: {mode}
"""


def labels(**values: object) -> set[str]:
    """The labels of the plan's finding."""
    plans, traces = check_file("plan.yaml", PLAN.format(**values).encode(), Gate())
    assert not traces
    (finding,) = (each for each in plans[0].findings if each.code == "MEM101")
    return {label for label, _ in finding.related}


@pytest.mark.parametrize(
    ("stage", "gpus", "label"),
    [
        (0, 8, "every GPU holds all states"),
        (0, 1, "every GPU holds all states"),
        (1, 8, "optimizer states divided over 8 ranks"),
        (2, 8, "optimizer states and gradients divided over 8 ranks"),
        (3, 8, "all states divided over 8 ranks"),
    ],
)
def test_who_holds_the_states(stage: int, gpus: int, label: str) -> None:
    """Nothing is shared by one rank, and each stage divides what it divides."""
    assert label in labels(stage=stage, gpus=gpus, mode="none")


@pytest.mark.parametrize(("mode", "label"), [("none", "all activations are kept"), ("full", "recompute full")])
def test_what_is_kept(mode: str, label: str) -> None:
    """Not `recompute none`."""
    assert label in labels(stage=2, gpus=8, mode=mode)
