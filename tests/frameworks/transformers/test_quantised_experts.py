"""Experts that rest in four bits beside linear layers, and the jobs in which they have no model."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.score import answer
from memcheck.errors import UnsupportedError

TRAINING: dict[str, Any] = {
    "framework": "huggingface",
    "method": "qlora",
    "lora": {"rank": 8, "target_modules": ["q_proj", "v_proj"]},
    "micro_batch_size": 1,
    "sequence_length": 1024,
    "activation_checkpointing": "full",
}


KEPT = {"prepare_model_for_kbit_training": False}
"""What is not quantised stays in 16 bits."""


def plan(model: str, layers: int = 2, parallelism: dict[str, Any] | None = None, **training: Any) -> dict[str, Any]:
    """A small job over quantised experts."""
    return {
        "memcheck": 1,
        "model": {"name": model, "overrides": {"num_hidden_layers": layers}},
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": 2 if parallelism else 1},
        "parallelism": parallelism or {},
        "training": {**TRAINING, "options": {"quantize_experts": True}, **training},
    }


def test_experts_rest_in_a_quarter_and_run_in_sixteen_bits() -> None:
    """Rest falls by three quarters of the experts; a step holds both matrices of one layer, and no more, again."""
    quantised, whole = (
        answer(plan("qwen1.5-moe-a2.7b", options={"quantize_experts": flag, **KEPT})).ranks[0] for flag in (True, False)
    )
    experts = 2 * 60 * 3 * 1408 * 2048 * 2
    said, other = ({i.name: i.allocated_bytes for i in rank.instants} for rank in (quantised, whole))
    assert other["init"] - said["init"] == pytest.approx(experts * (1 - 4.127 / 16), rel=0.001)
    assert said["forward"] - said["init"] > experts / 2


def test_sharded_base_is_whole_until_its_shards_are_made() -> None:
    """FSDP2 divides a base of bitsandbytes' that is on the GPU already: whole and shards exist together."""
    stated = {"options": {"quantize_experts": True, "fsdp_version": 2, **KEPT}, "trainer": "axolotl"}
    held = {"method": "lora", "base": "int8"}
    for changes in ({}, held):
        sharded = answer(plan("qwen1.5-moe-a2.7b", parallelism={"zero_stage": 3}, **stated, **changes)).ranks[0]
        whole = answer(plan("qwen1.5-moe-a2.7b", **stated, **changes)).ranks[0]
        load = next(i for i in sharded.instants if i.name == "load").components_bytes["parameters"]
        resident = next(i for i in whole.instants if i.name == "init").components_bytes["parameters"]
        assert load == pytest.approx(1.5 * resident, rel=0.01)


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        ("mixtral-8x7b", {}, "recompute stops inside"),
        ("qwen1.5-moe-a2.7b", {"method": "full"}, "without a quantised base"),
    ],
)
def test_what_has_no_model_is_refused(model: str, changes: dict[str, Any], words: str) -> None:
    """Where copies outlive their layer, or nothing is known of them, there is no figure."""
    stated = {key: value for key, value in changes.items() if key != "lora" or changes.get("method") != "full"}
    job = plan(model, **stated)
    if changes.get("method") == "full":
        del job["training"]["lora"]
    with pytest.raises(UnsupportedError, match=words):
        answer(job)
