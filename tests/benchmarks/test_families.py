"""Small models of every family, traced moment by moment and priced again without PyTorch."""

from __future__ import annotations

import pytest

from benchmarks import families
from benchmarks.small import RECOMPUTES, ROUTED, SMALL

pytestmark = pytest.mark.slow

RECORDS = families.records()


def test_every_plan_was_traced() -> None:
    """A family, attention, recompute or recipe that is added is traced, too."""
    assert list(RECORDS) == list(families.plans())


def test_no_moment_is_predicted_too_low() -> None:
    """Not by more than 0.3 %: here no other moment and no large table hides the layer's tensors."""
    assert [
        f"{name}: {moment} {gap:+.2%}"
        for name, of in families.gaps().items()
        for moment, gap in of.items()
        if gap < families.OPEN.get(name, families.LOW)
    ] == []


def test_every_family_is_there_with_and_without_recompute() -> None:
    """Each label has a plan of each recompute; mixtures of experts are in bf16 alone in eager attention."""
    labels = [label for label, _, _ in SMALL]
    assert len(set(labels)) == len(labels)
    assert set(ROUTED) <= set(labels)
    for label in labels:
        found = {name.split(", ")[2] for name in RECORDS if name.split(", ")[0] == label}
        assert found == set(RECOMPUTES), label


def test_the_table_is_of_today() -> None:
    """FAMILIES.md says how far off each moment is."""
    with open(families.TABLE, encoding="utf-8") as file:
        assert file.read() == families.table()
