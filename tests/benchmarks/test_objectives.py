"""Steps of TRL's, PEFT's and the Trainer's own code, traced, and priced again without PyTorch."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks.objective_cases import plan, records
from benchmarks.score import resolved
from memcheck.accounts.estimate import Estimate
from memcheck.memory.estimate import estimate

pytestmark = pytest.mark.slow

MIB = 2**20
RECORDS = {record["id"]: record for record in records()}
MOMENTS = {
    ("forward", "loss"): ("forward", "loss", "reference"),
    ("backward",): ("backward",),
    ("optimizer",): ("optimizer",),
    ("evaluation",): ("evaluation",),
}
"""Instants of a plan, and the phases of a trace: the head counts as forward or as loss, and a reference runs in both."""


@cache
def priced(name: str) -> Estimate:
    """The estimate of a record's plan."""
    job, gpu, overhead = resolved(plan(RECORDS[name]))
    return estimate(job, gpu, overhead)


@pytest.mark.parametrize("name", RECORDS)
def test_every_moment_is_the_traced_one(name: str) -> None:
    """The peak is within 0.1 %, and no moment more than 0.5 % too low."""
    record = RECORDS[name]
    answer = priced(name)
    assert answer.allocated_bytes == pytest.approx(record["peak_mib"] * MIB, rel=0.001)
    said = {instant.name: instant.allocated_bytes for instant in answer.ranks[0].instants}
    for instants, phases in MOMENTS.items():
        seen = max((record["phase_peak_mib"].get(phase, 0.0) for phase in phases), default=0.0)
        mine = max(said.get(instant, 0) for instant in instants)
        assert mine >= 0.995 * seen * MIB, instants


@pytest.mark.parametrize("name", [name for name, record in RECORDS.items() if "lora" not in record])
def test_the_model_has_the_traced_parameters(name: str) -> None:
    """Tensor by tensor; those of adapters were counted before they were put in."""
    answer = priced(name)
    assert answer.parameters == RECORDS[name]["params"]
