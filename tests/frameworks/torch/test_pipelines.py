"""Pipelines of FSDP2: when a rank's gradients are reduced, and the steps that say so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.drawn import predicted

TRACED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("traced_pipelines.json").read_text(encoding="utf-8"))
"""Steps of torch 2.13.0's ``torch.distributed.pipelining`` around small stages under ``fully_shard``: the highest bytes
of each instant of every pipeline rank, by ``memcheck verify``."""


@pytest.mark.parametrize("row", TRACED, ids=[row["id"] for row in TRACED])
def test_every_rank_of_a_traced_step(row: dict[str, Any]) -> None:
    """Gradients wait in the dtype of the reduction until the last backward is over: they are most of the peak."""
    found = predicted(row["plan"])
    for rank, instants in row["ranks"].items():
        assert -0.001 <= max(found[rank].values()) / max(instants.values()) - 1 <= 0.005, rank
        for name, traced in instants.items():
            assert -0.004 <= found[rank][name] / traced - 1 <= 0.01, (rank, name)
