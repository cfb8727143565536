"""Whole jobs that were traced in the trainers' own objects: load, two steps, evaluation and save."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.job_cases import moments, plan, predicted, records
from benchmarks.score import resolved
from memcheck.memory.estimate import estimate

RECORDS = {record["id"]: record for record in records()}
LOW, HIGH = -0.001, 0.005
ABOVE = {("trl 1.12 KTO full ZeRO-3", "backward"): 0.017, ("trl 1.12 KTO full ZeRO-3", "evaluation"): 0.06}
"""Where the head counts as gathered while the loss runs, though ZeRO-3 has let it go: a bound."""


def _estimate(record: dict[str, Any]) -> Any:
    return estimate(*resolved(plan(record)))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_every_moment_of_a_whole_job(name: str) -> None:
    """Within 0.5 %, and not more than 0.1 % too low."""
    record = RECORDS[name]
    (rank,) = _estimate(record).ranks
    found = predicted({instant.name: instant.allocated_bytes for instant in rank.instants})
    loads = {"load": record["gpu_bytes"]["load"]} if "load" in found else {}
    for moment, truth in {**loads, **moments(record)}.items():
        assert LOW <= found[moment] / truth - 1 <= ABOVE.get((name, moment), HIGH), moment


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in RECORDS if RECORDS[name].get("loading", {}).get("dtype") == "float32"]
)
def test_weights_that_are_cast_as_they_load_are_host_memory(name: str) -> None:
    """Each process holds them whole: within 1 % of what its trace held on the host. Others are files in memory."""
    record = RECORDS[name]
    (load,) = (moment for moment in _estimate(record).host_moments if moment.name == "load")
    processes = record["plan"]["hardware"]["gpus_per_node"]
    held = sum(size for _, size in load.components) / processes
    assert held == pytest.approx(record["host_bytes"]["load"], rel=0.01)


def test_jobs_are_of_many_kinds() -> None:
    """At least 25 whole jobs of four launchers are recorded, each with the versions that ran."""
    assert len(RECORDS) >= 25
    assert {record["launcher"] for record in RECORDS.values()} == {"axolotl", "llamafactory", "transformers", "trl"}
    assert all({"torch", "transformers", "accelerate"} <= set(record["versions"]) for record in RECORDS.values())
