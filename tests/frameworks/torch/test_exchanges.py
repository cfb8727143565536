"""What torchtitan's selective recompute keeps of the experts' all-to-alls, by release."""

from __future__ import annotations

from typing import Any

from benchmarks.score import answer

PLAN: dict[str, Any] = {
    "model": "qwen3-30b-a3b",
    "hardware": {"gpu": "h100-80gb", "gpus_per_node": 8},
    "parallelism": {"zero_stage": 3, "expert": 8},
    "training": {
        "framework": "torchtitan",
        "micro_batch_size": 1,
        "sequence_length": 4096,
        "activation_checkpointing": "selective",
    },
}


def activations(version: str | None) -> int:
    """Bytes of them at the peak under a release; None: the newest."""
    training = PLAN["training"] if version is None else {**PLAN["training"], "framework_version": version}
    return answer({**PLAN, "training": training}).components_bytes["activations"]


def test_releases_before_0_2_repeat_the_exchange() -> None:
    """Two tensors of every token's eight experts and hidden size are less, for each of 48 layers; 0.2 keeps them."""
    assert activations("0.2") == activations(None)
    exchanged = 48 * 2 * 4096 * 8 * 2048 * 2
    assert activations("0.1.0") <= activations(None) - exchanged
