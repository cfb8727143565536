"""Steps on pictures on several GPUs, priced again without PyTorch, moment by moment."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.picture_cases import records
from benchmarks.score import answer

pytestmark = pytest.mark.slow

RECORDS: dict[str, dict[str, Any]] = {record["id"]: record for record in records()}
HIGH = 0.035
HIGHER = {"f1": 0.16, "idefics2.f2c": 0.16, "idefics3.f2": 0.06, "gemma4.f2": 0.12}
"""Kinds of steps that are priced higher: what FSDP1 gathers ahead of frozen units, and the fullest of its ranks, which
is not the traced one; Idefics 2's perceiver, whose layers are taken as one unit; the flat buffers of small towers."""
LOW = -0.005
LOWER = {"ddp": -0.05}
"""DDP copies all outputs of a model behind the loss, which is higher than the loss where a vocabulary is small."""


def limit(name: str, limits: dict[str, float], otherwise: float) -> float:
    """What a step is allowed."""
    return next((value for word, value in limits.items() if word in name), otherwise)


@pytest.mark.parametrize("name", RECORDS)
def test_every_moment_is_near_the_traced_one(name: str) -> None:
    """No moment is more than 0.5 % below its own, or much above it."""
    said = {instant.name: instant.allocated_bytes for instant in answer(RECORDS[name]["plan"]).ranks[0].instants}
    for instant, traced in RECORDS[name]["instants_bytes"].items():
        lowest = limit(name, LOWER, LOW) if instant == "loss" else LOW
        assert lowest < said[instant] / traced - 1 < limit(name, HIGHER, HIGH), instant
