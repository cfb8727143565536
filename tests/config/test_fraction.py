"""Shares of capacity."""

from __future__ import annotations

import pytest

from memcheck.config.read import fraction


@pytest.mark.parametrize(
    ("written", "expected"), [(0.9, 0.9), (1, 1.0), ("90%", 0.9), ("0.9", 0.9), (" 85 % ", 0.85), ("100%", 1.0)]
)
def test_share_is_a_number_or_a_percentage(written: object, expected: float) -> None:
    """``0.9`` and ``90%`` are the same."""
    assert fraction(written) == pytest.approx(expected)


@pytest.mark.parametrize("written", [0, -1, 90, "90", "0%", "101%", "nan", "inf%", "full", "", True, None, [0.9]])
def test_anything_else_is_refused(written: object) -> None:
    """A forgotten percent sign must not become ninety times the capacity."""
    with pytest.raises(ValueError, match="is not a share of capacity"):
        fraction(written)
