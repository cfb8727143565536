"""DDP's buckets, and the tensors of ZeroRedundancyOptimizer's fullest rank."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.accounts.estimate import RankEstimate
from memcheck.accounts.state import LocalTensor, orthogonalised
from memcheck.frameworks.torch.resident import fullest_share
from memcheck.verify.subject import Subject
from tests.verify.plans import layers, plan, subject


def priced(parallelism: dict[str, Any], **training: Any) -> Subject:
    """A small Llama on eight GPUs."""
    return subject(plan(gpus=8, parallelism=parallelism, model=layers("tinyllama-1.1b", 3), **training))


def rank_of(found: Subject) -> RankEstimate:
    """Its only pipeline rank."""
    (rank,) = found.estimate.ranks
    return rank


def bytes_of(found: Subject, name: str) -> int:
    """The highest moment of one instant."""
    return next(i.allocated_bytes for i in rank_of(found).instants if i.name == name)


def test_no_sync_keeps_gradients_beside_the_buckets() -> None:
    """Buckets that are the gradients become so with the micro-batch that synchronises: until then both are there."""
    every, late = (
        priced({"gradient_as_bucket_view": True, "gradient_sync": sync}, gradient_accumulation_steps=4)
        for sync in ("every", "last")
    )
    gradients = 2 * rank_of(every).parameters
    assert bytes_of(late, "backward") - bytes_of(every, "backward") == pytest.approx(gradients, rel=1e-3)
    assert bytes_of(late, "optimizer") == bytes_of(every, "optimizer")


def test_one_micro_batch_makes_no_second_copy() -> None:
    """With nothing to accumulate, no_sync is never entered."""
    every, late = (priced({"gradient_as_bucket_view": True, "gradient_sync": sync}) for sync in ("every", "last"))
    assert bytes_of(late, "backward") == bytes_of(every, "backward")


def test_a_rank_steps_on_whole_tensors() -> None:
    """The temporaries of a foreach step are those of the tensors that one rank has, not an eighth of all."""
    share = priced({"zero_stage": 1}, optimizer={"name": "adamw", "implementation": "foreach"})
    fused = priced({"zero_stage": 1}, optimizer={"name": "adamw", "implementation": "fused"})
    embedding = 2 * 32000 * 2048
    assert bytes_of(share, "optimizer") - bytes_of(fused, "optimizer") >= embedding


def test_stacked_experts_are_no_matrices_to_muon() -> None:
    """torch.optim.Muon takes two dimensions: experts in one tensor of three stay with AdamW, which has two states."""
    matrix = LocalTensor("q_proj.weight", (64, 32), True, matrix=True)
    stacked = LocalTensor("experts.down_proj", (8, 64, 32), True, expert=True, matrix=True)
    assert orthogonalised(matrix)
    assert not orthogonalised(stacked)


def test_muon_is_divided_apart_from_adamw() -> None:
    """Each of the two optimizers has a partition of its own, so that the first rank gets the largest of both."""
    found = priced({"zero_stage": 1}, optimizer="muon")
    tensors = [
        LocalTensor("a", (512, 512), True, matrix=True),
        LocalTensor("b", (512, 256), True, matrix=True),
        LocalTensor("embed", (1024, 512), True),
    ]
    rank, mine, states = fullest_share(found.job, tensors)  # type: ignore[arg-type]
    assert (rank, [t.name for t in mine]) == (0, ["a", "embed"])
    assert states == 2 * 512 * 512 + 2 * 2 * 1024 * 512 + 512  # momentum; two moments and the count of steps
