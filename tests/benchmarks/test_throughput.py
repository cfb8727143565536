"""Predicted against published speeds: the order is the claim."""

from __future__ import annotations

import pytest

from benchmarks.throughput import LEAST, Published, groups, layouts, orders, ranks, rows, spearman
from memcheck.points.types import FITS


def test_rank_correlation() -> None:
    """1 for the same order, -1 for the reverse; equal values share their rank; one wrong pair of three is 0.5."""
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 3], [1, 3, 2]) == pytest.approx(0.5)
    assert ranks([5, 7, 5]) == [1.5, 3, 1.5]


def test_published_rows_are_ordered_as_measured() -> None:
    """torchtitan's tables for Llama 3.1 8B, 70B and 405B, and every table of theirs and of Megatron's by itself."""
    found = orders(rows())
    assert [(name, number) for name, number, *_ in found[:2]] == [
        ("torchtitan, all tables", 31),
        ("torchtitan 1 to 6", 18),
    ]
    assert all(correlation >= LEAST for _, _, correlation, _, _ in found), found


def test_predictions_are_of_the_measured_size() -> None:
    """A roofline is faster than what runs: no more than twice as fast on the rows of the published layouts, and little
    more where eight ranks share the short kernels of an 8B model.
    """
    for row in rows():
        assert 0.9 < row.predicted / row.measured < (2.1 if row.table == "async TP 2025" else 2), row.id


def test_figures_not_read_again_decide_nothing() -> None:
    """A figure that no source at hand confirms is counted in no correlation; today there is none."""
    every = rows()
    assert all(row.reread for row in every)
    doubted = [row._replace(reread=row.id != "gpt-22b-full") for row in every]
    counted = {name: [row.id for row in members] for name, members in groups(doubted)}
    assert len(counted["all rows"]) == len(every) - 1
    assert len(counted["Korthikanti 5"]) == 7
    assert all("gpt-22b-full" not in members for members in counted.values())


@pytest.mark.parametrize("layout", layouts(), ids=lambda layout: layout.title)
def test_published_layouts_are_legal_and_fit(layout: Published) -> None:
    """Llama on torchtitan, GPT-3 175B to 1T on Megatron, DeepSeek-V3: what was trained so passes."""
    assert layout.point.verdict == FITS, layout.point.problems
