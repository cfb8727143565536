"""Plans drawn at random, traced again: a small sample of ``python -m benchmarks.fuzz --again``."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from benchmarks import drawn, fuzz  # noqa: E402

SAMPLE = ("2.48", "2.53")
RECORDS = {record["id"]: record for record in drawn.records()}


@pytest.mark.parametrize("name", SAMPLE)
def test_a_drawn_plan_is_traced_as_recorded(name: str) -> None:
    """Every moment is where it was, and is predicted as closely as asked."""
    _, comparisons = fuzz.trace(RECORDS[name]["plan"])
    for comparison in comparisons:
        found = fuzz.moments(comparison)
        recorded = RECORDS[name]["ranks"][str(comparison.observed.pipeline_rank)]
        assert {k: seen for k, (_, seen) in found.items()} == pytest.approx(recorded, rel=1e-3)
        assert fuzz.off(found) == {}
