"""Steps traced with bitsandbytes', peft's and Liger's own code, and priced again without them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.base_cases import GROUPS
from benchmarks.cases import load
from benchmarks.score import answer

pytestmark = pytest.mark.slow

CASES: dict[str, dict[str, Any]] = {case["id"]: case for name in GROUPS for case in load(name)["cases"]}


@pytest.mark.parametrize("name", CASES)
def test_every_moment_is_the_traced_one(name: str) -> None:
    """Each instant of the step is within 0.1 % of the trace's."""
    said = {instant.name: instant.allocated_bytes for instant in answer(CASES[name]["plan"]).ranks[0].instants}
    for instant, traced in CASES[name]["instants_bytes"].items():
        assert said[instant] == pytest.approx(traced, rel=0.001), instant
