"""Steps on pictures under FSDP, and outputs that carry what a tower has made, held against traced ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memcheck.accounts.estimate import Estimate
from tests.frameworks.torch.test_towers import MIB, priced
from tests.models.multimodal import FACTS

TRACED: dict[str, Any] = json.loads((FACTS / "sharded.json").read_text())
STEPS = {step["id"]: step for step in TRACED["steps"]}
COMMON = {
    "optimizer": "sgd",
    "attention": "sdpa",
    "sequences": "packed",
    "initialization": "device",
    "checkpoint": "none",
}
WIDE = {"qwen2_5_vl, FSDP1, adapters": 0.1}
"""Moments that are estimated higher: what FSDP1 gathers ahead of units of frozen weights."""


def answer(step: dict[str, Any], **training: Any) -> Estimate:
    """The estimate of a traced step."""
    return priced(
        TRACED["configs"][step["config"]],
        COMMON | step["training"] | training,
        hardware={"gpu": {"name": "lab", "memory_gib": 100000}, "gpus_per_node": step["gpus"]},
        parallelism={"zero_stage": 3} if step["gpus"] > 1 else {},
    )


@pytest.mark.parametrize("name", STEPS)
def test_traced_steps(name: str) -> None:
    """No moment is more than 0.5 % below its own, or 3 % above."""
    instants = {instant.name: instant.allocated_bytes / MIB for instant in answer(STEPS[name]).ranks[0].instants}
    for phase, seen in STEPS[name]["phases_mib"].items():
        assert -0.005 < instants[phase] / seen - 1 < WIDE.get(name, 0.03), phase


def test_an_output_of_older_versions_has_the_image_tokens_alone() -> None:
    """llava's layer behind the features, and the tower's last rows, went with the tower's output before 5.24."""
    step = STEPS["llava, one GPU"]
    before = answer(step, options={"transformers_version": "5.23"})
    (loss,) = [instant.allocated_bytes for instant in before.ranks[0].instants if instant.name == "loss"]
    assert loss / MIB == pytest.approx(124.521, rel=0.001)
