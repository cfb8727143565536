"""Traces against peaks that were traced by another program with the same libraries (torch 2.13, transformers 5.23)."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from tests.verify.plans import layers, plan  # noqa: E402
from tests.verify.running import traced  # noqa: E402

MIB = 2**20
ONE: dict[str, Any] = {"micro_batch_size": 1}

TRUTH = {
    "autocast, foreach": (
        plan(model="llama-3.2-1b", **ONE, sequence_length=512, precision="bf16-mixed"),
        23571.369,
        "optimizer",
    ),
    "dense experts": (
        plan(
            model=layers("mixtral-8x7b", 8),
            **ONE,
            sequence_length=2048,
            optimizer={"name": "adamw", "implementation": "fused"},
        ),
        90846.984,
        "backward",
    ),
    "FSDP2 over 8 ranks": (
        plan(
            model=layers("llama-3.1-70b", 8),
            gpus=8,
            parallelism={"zero_stage": 3},
            **ONE,
            sequence_length=2048,
            precision="bf16-mixed",
        ),
        32955.558,
        "backward",
    ),
}
"""Of those in ``benchmarks/data/traced.json``, all of which are priced: a tied model, experts, and shards."""


@pytest.mark.parametrize("name", TRUTH)
def test_peaks_are_equal(name: str) -> None:
    """To 0.1 %, and at the same instant."""
    found, peak_mib, instant = TRUTH[name]
    _, observation, _ = traced(found)
    (rank,) = observation.ranks
    assert rank.peak.allocated_bytes / MIB == pytest.approx(peak_mib, rel=1e-3)
    assert rank.peak.name == instant
