"""Small encoders and decoders with each of their heads, traced moment by moment and priced again without PyTorch."""

from __future__ import annotations

import pytest

from benchmarks import heads

pytestmark = pytest.mark.slow


def test_every_plan_was_traced() -> None:
    """A model, head or way that is added is traced, too."""
    assert list(heads.records()) == list(heads.plans())


def test_no_moment_is_predicted_too_low() -> None:
    """Not by more than 0.3 %: rows of labels are small, so that what a head holds of hidden states shows."""
    assert [
        f"{name}: {moment} {gap:+.2%}"
        for name, of in heads.gaps().items()
        for moment, gap in of.items()
        if gap < heads.LOW
    ] == []


def test_the_table_is_of_today() -> None:
    """HEADS.md says how far off each moment is."""
    with open(heads.TABLE, encoding="utf-8") as file:
        assert file.read() == heads.table()
