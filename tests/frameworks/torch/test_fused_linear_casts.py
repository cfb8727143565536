"""The fused linear loss under autocast over fp32 weights, against steps traced with torch 2.13 and transformers 5.24."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.draw import draw
from benchmarks.score import answer

MIB = 2**20
FULL = {"method": "full", "lora": None, "attention": "sdpa"}
ROWS: dict[str, tuple[dict[str, Any], float]] = {"adapters": ({}, 8944.622), "full": (FULL, 9516.046)}
"""MiB at the loss: a frozen head is cast for each product, a trained one's copy is kept for those with the weight itself
(Liger-Kernel 0.8.5, ops/fused_linear_cross_entropy.py)."""


@pytest.mark.parametrize("name", ROWS)
def test_products_cast_the_head(name: str) -> None:
    """The loss is within 0.1 %."""
    changes, seen = ROWS[name]
    plan = draw(441, 39)
    plan["training"] = {k: v for k, v in (plan["training"] | changes).items() if v is not None}
    (rank,) = answer(plan).ranks
    (loss,) = [instant for instant in rank.instants if instant.name == "loss"]
    assert loss.allocated_bytes / MIB == pytest.approx(seen, rel=0.001)
