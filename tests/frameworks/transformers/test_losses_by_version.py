"""What transformers' loss makes of the logits, by its version and by the kernel that computes it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.score import answer

GIB = 2**30
LOGITS = 8 * 4096 * 32000


def plan(version: str, **training: object) -> dict[str, Any]:
    """Adapters of Mistral-7B's attention on one GPU, whose loss is the peak."""
    return {
        "model": "mistral-7b-v0.1",
        "hardware": {"gpu": "a100-80gb"},
        "training": {
            "framework": "huggingface",
            "framework_version": version,
            "method": "lora",
            "lora": {"rank": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
            "micro_batch_size": 8,
            "sequence_length": 4096,
            "precision": "bf16-pure",
            "optimizer": {"name": "adamw", "implementation": "foreach"},
            "activation_checkpointing": "full",
            "attention": "flash",
            **training,
        },
    }


def loss(found: dict[str, Any]) -> int:
    """Bytes at the loss."""
    (rank,) = answer(found).ranks
    return next(instant.allocated_bytes for instant in rank.instants if instant.name == "loss")


def test_up_to_4_48_logits_are_copied() -> None:
    """36.08 GiB are published for 4.48.1 (fms-acceleration, a100_80gb.csv, batch 8): 2 + 4 + 4 + 4 bytes a logit."""
    assert answer(plan("4.48")).allocated_bytes / GIB == pytest.approx(36.08, rel=0.001)


@pytest.mark.parametrize(("version", "more"), [("4.45", 2), ("4.46", 4), ("4.48", 4), ("4.49", 0)])
def test_bytes_per_logit_at_the_loss(version: str, more: int) -> None:
    """Beside the 10 of today's: a copy until 4.48, and the logits as computed, which are gone up to 4.45."""
    assert (loss(plan(version)) - loss(plan("5.1"))) / LOGITS == pytest.approx(more, abs=0.1)


def test_a_kernel_that_works_in_place_keeps_one_tensor() -> None:
    """Its gradient lies where the fp32 logits were: nothing else of their size is made."""
    standard, in_place = (loss(plan("5.1", loss=kind)) for kind in ("standard", "in-place"))
    assert (standard - in_place) / LOGITS == pytest.approx(4, abs=0.1)
    peaks = [answer(plan("5.1", loss=kind, micro_batch_size=16)).allocated_bytes for kind in ("standard", "in-place")]
    assert peaks[0] - peaks[1] > 4 * LOGITS


def test_eight_bytes_a_logit_as_published() -> None:
    """46.68 GiB at batch 16 with Unsloth's kernel under transformers 4.45 (fms-acceleration, a100_80gb_liger.csv)."""
    mixed = {"recipe": "bf16-mixed", "params": "bf16"}
    found = answer(plan("4.45", loss="in-place", micro_batch_size=16, precision=mixed))
    assert found.allocated_bytes / GIB == pytest.approx(46.68, rel=0.01)
