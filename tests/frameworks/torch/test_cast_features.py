"""Features that FSDP casts for Whisper's forward, against steps traced with torch 2.13 and transformers 5.24."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.added import added
from tests.frameworks.torch.test_towers import MIB, priced

LORA = {"method": "lora", "lora": {"rank": 8, "target_modules": ["q_proj", "v_proj"], "dtype": "fp32"}}
FSDP1 = {"framework": "huggingface", "options": {"fsdp_version": 1}}
ROWS: dict[str, tuple[dict[str, Any], tuple[float, float, float, float]]] = {
    "FSDP2": ({}, (69.017, 57.114, 115.397, 28.902)),
    "FSDP2, adapters": (LORA, (58.183, 46.273, 80.792, 15.859)),
    "FSDP1": (FSDP1, (67.819, 69.241, 111.773, 29.468)),
}
"""MiB at forward, loss, backward and optimizer: three layers of each, recomputed, four ranks. The convolution that
adapters leave frozen keeps no copy of the features; the root's forward has them to its end."""


@pytest.mark.parametrize("name", ROWS)
def test_traced_steps(name: str) -> None:
    """Every instant is within 0.1 %."""
    training, seen = ROWS[name]
    found = priced(
        added()["whisper"]["config"],
        {
            "micro_batch_size": 2,
            "sequence_length": 1500,
            "sequences": "packed",
            "precision": "bf16-mixed",
            "optimizer": "sgd",
            "attention": "sdpa",
            "activation_checkpointing": "full",
            "initialization": "device",
            "checkpoint": "none",
            **training,
        },
        hardware={"gpu": {"name": "lab", "memory_gib": 100000}, "gpus_per_node": 4},
        parallelism={"zero_stage": 3},
    )
    instants = {instant.name: instant.allocated_bytes / MIB for instant in found.ranks[0].instants}
    for phase, mib in zip(("forward", "loss", "backward", "optimizer"), seen, strict=True):
        assert instants[phase] == pytest.approx(mib, rel=0.001), phase
