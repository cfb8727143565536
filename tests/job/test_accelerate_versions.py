"""What Accelerate's release decides: when gradients are reduced under FSDP2."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.score import answer
from memcheck.judge import Gate, check_file
from memcheck.rules.result import PlanResult


def plan(version: str | None, *, sync: str | None = None, **options: object) -> dict[str, Any]:
    """Eight GPUs, four micro-batches a step."""
    stated = {"fsdp_version": 2, **({"accelerate_version": version} if version else {}), **options}
    return {
        "memcheck": 1,
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8},
        "parallelism": {"zero_stage": 3, **({"gradient_sync": sync} if sync else {})},
        "training": {
            "framework": "huggingface",
            "micro_batch_size": 1,
            "sequence_length": 2048,
            "gradient_accumulation_steps": 4,
            "activation_checkpointing": "full",
            "options": stated,
        },
    }


def checked(found: dict[str, Any]) -> PlanResult:
    """The verdict of a plan."""
    (result,), _ = check_file("plan.yaml", json.dumps(found).encode(), Gate())
    return result


@pytest.mark.parametrize(
    ("version", "last"), [("1.6", False), ("1.8.1", False), ("1.10.0", False), ("1.11.0", True), ("1.15", True)]
)
def test_gradients_stay_whole_since_1_11(version: str, last: bool) -> None:
    """Before, ``no_sync`` does nothing under FSDP2, and each micro-batch leaves a share of its gradients."""
    found, every = answer(plan(version)), answer(plan(version, sync="every"))
    assert (found.allocated_bytes > every.allocated_bytes + 8e9) == last
    said = {each.key: each.value for each in checked(plan(version)).assumptions}
    assert said["parallelism.gradient_sync"] == ("last" if last else "every")


@pytest.mark.parametrize(("version", "sync"), [("0.12", "every"), ("0.13.1", "last"), (None, "last")])
def test_a_release_of_axolotl_says_which_accelerate_it_has(version: str | None, sync: str) -> None:
    """0.12 asks for 1.10, 0.13 for 1.11; a stated release of Accelerate counts first."""
    found = plan(None)
    found["training"]["trainer"] = {"name": "axolotl", **({"version": version} if version else {})}
    said = {each.key: each.value for each in checked(found).assumptions}
    assert said["parallelism.gradient_sync"] == sync
    found["training"]["options"]["accelerate_version"] = "1.11"
    assert {each.key: each.value for each in checked(found).assumptions}["parallelism.gradient_sync"] == "last"


def test_fsdp1_is_asked_by_every_release() -> None:
    """Its own ``no_sync`` is found."""
    old, new = (answer(plan(version, fsdp_version=1)).allocated_bytes for version in ("1.6", "1.15"))
    assert old == new


@pytest.mark.parametrize(("version", "idle"), [("1.10", True), ("1.11", False), (None, False)])
def test_what_an_old_release_does_not_do_is_reported(version: str | None, idle: bool) -> None:
    """``gradient_sync: last`` is a key without effect there."""
    said = [each.message for each in checked(plan(version, sync="last")).findings if each.code == "MEM416"]
    assert bool(said) == idle
    assert not idle or "Accelerate before 1.11 reduces every micro-batch" in said[0]


def test_an_option_without_effect_is_no_contradiction() -> None:
    """``sync_each_batch: false`` asks for what an old release cannot do; the assumption says what it does instead."""
    result = checked(plan("1.10", sync_each_batch=False))
    assert not [each for each in result.findings if each.code == "MEM409"]
    (said,) = (each for each in result.assumptions if each.key == "parallelism.gradient_sync")
    assert (said.value, "Accelerate before 1.11" in said.why) == ("every", True)


def test_the_release_is_an_assumption() -> None:
    """Without a release the one is taken that needs most memory, and the plan's assumptions name it."""
    (said,) = (each for each in checked(plan(None)).assumptions if each.key == "training.options.accelerate_version")
    assert said.value == "1.11 to 1.13"
    assert answer(plan(None)).allocated_bytes == answer(plan("1.12")).allocated_bytes
