"""Steps of Megatron-core's own code over TransformerEngine's, as ``benchmarks/data/megatron_core.json`` has them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.cases import load
from benchmarks.score import resolved
from memcheck.frameworks.megatron import workspaces
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture

LOWEST, HIGHEST = -0.01, 0.025
"""Of the step's peak. The highest is a stage of virtual ones that is said to receive ahead all the time."""


@pytest.mark.parametrize("record", load("megatron_core.json")["steps"], ids=lambda record: str(record["id"]))
def test_every_stage_takes_what_its_own_code_takes(record: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At rest, in backward, in the optimizer and at the peak; in forward where that is the peak.

    An earlier forward may hold what checkpoints around experts have left, which its layers let go of one by one.
    """
    monkeypatch.setattr(workspaces, "TE_WORKSPACE", 512)
    job, _, _ = resolved(record["plan"])
    assert isinstance(job, TrainingJob)
    assert isinstance(job.architecture, Architecture)
    ranks = megatron_ranks(job, job.architecture, workspaces.Device("sm_90", 0))
    assert [str(rank.pipeline_rank) for rank in ranks] == list(record["ranks"])
    for rank, seen in zip(ranks, record["ranks"].values(), strict=True):
        found = {instant.name: instant.allocated_bytes for instant in rank.instants}
        found["forward"] = max(found["forward"], found.get("loss", 0))
        peak = max(seen.values())
        off = {name: (found[name] - seen[name]) / peak for name in ("init", "backward", "optimizer")}
        off["peak"] = max(found.values()) / peak - 1
        assert all(LOWEST < error < HIGHEST for error in off.values()), off
