"""Steps of torchtitan's own code, traced: every moment of every rank, priced again without PyTorch."""

from __future__ import annotations

import pytest

from benchmarks import drawn, titan

pytestmark = pytest.mark.slow

RECORDS = {record["id"]: record for record in titan.records()}
ABOVE = {
    "experts over 4, selective": "the flat buffer of what is no expert, let go of before that of the experts",
}
"""Steps with a moment that is more than 1 % above, below their peak, and the tensor. It may only become shorter."""


@pytest.mark.parametrize("name", RECORDS)
def test_every_moment_is_predicted(name: str) -> None:
    """Within 1 %, and not more than 0.5 % too low."""
    far = {rank: bad for rank, of in drawn.gaps(RECORDS[name]).items() if (bad := drawn.wide(of))}
    low = {rank: of for rank, of in far.items() if min(of.values()) < 0}
    assert not low
    assert bool(far) == (name in ABOVE), far
