"""Releases that decide bytes and that a plan may leave out: each is a listed assumption."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.score import answer
from memcheck.judge import Gate, check_file


def megatron(**options: object) -> dict[str, Any]:
    """A long context whose logits are the largest tensors."""
    return {
        "memcheck": 1,
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200", "gpus_per_node": 8},
        "parallelism": {"tensor": 8},
        "training": {
            "framework": "megatron",
            "micro_batch_size": 1,
            "sequence_length": 131072,
            "activation_checkpointing": "full",
            "options": {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te", **options},
        },
    }


def titan(version: str | None = None, *, compiled: bool = True) -> dict[str, Any]:
    """Llama 3.1 8B on eight GPUs."""
    stated = {"framework_version": version} if version else {}
    return {
        "memcheck": 1,
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h200", "gpus_per_node": 8},
        "parallelism": {"zero_stage": 3},
        "training": {
            "framework": "torchtitan", "micro_batch_size": 1, "sequence_length": 8192, "compile": compiled, **stated,
        },
    }  # fmt: skip


def assumed(plan: dict[str, Any], key: str) -> list[object]:
    """The values that are assumed for a key."""
    (result,), _ = check_file("plan.yaml", json.dumps(plan).encode(), Gate())
    return [each.value for each in result.assumptions if each.key == key]


def test_transformer_engine_decides_the_loss() -> None:
    """Without a release it is the one whose loss needs most, and the assumptions say so."""
    key = "training.options.transformer_engine_version"
    assert assumed(megatron(), key) == ["2.18"]
    assert assumed(megatron(transformer_engine_version="2.11"), key) == []
    without, older = answer(megatron()), answer(megatron(transformer_engine_version="2.11"))
    assert without.allocated_bytes == answer(megatron(transformer_engine_version="2.18")).allocated_bytes
    assert without.allocated_bytes > 1.03 * older.allocated_bytes


def test_transformer_engine_is_no_question_elsewhere() -> None:
    """Megatron's own losses do not ask for it."""
    native = megatron(cross_entropy_fusion_impl="native")
    assert assumed(native, "training.options.transformer_engine_version") == []


def test_torchtitans_release_is_listed() -> None:
    """Its steps were read from the main branch; a stated release is no assumption."""
    assert assumed(titan(), "training.framework_version") == ["main of 2026, b5bcd76c6"]
    assert assumed(titan("0.2.3"), "training.framework_version") == []


@pytest.mark.parametrize(("version", "wider"), [("0.1", True), ("0.2.2", True), ("0.2.3", False), (None, False)])
def test_compiled_steps_of_other_releases_have_wider_intervals(version: str | None, wider: bool) -> None:
    """One configuration printed 49.6 GiB in one release and 30.9 in the next: such an interval holds both."""
    found, main = answer(titan(version)), answer(titan())
    low, high = found.needed_interval_bytes
    assert (high - low > 2 * (main.needed_interval_bytes[1] - main.needed_interval_bytes[0])) == wider
    if wider:
        assert high / low > 49.6 / 30.9


def test_eager_steps_do_not_widen() -> None:
    """The published pair is of compiled steps."""
    old, main = answer(titan("0.2.2", compiled=False)), answer(titan(compiled=False))
    assert old.needed_interval_bytes == main.needed_interval_bytes
