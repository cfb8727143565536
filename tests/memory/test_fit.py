"""Where an interval lies: the three words, and what they have to do with the predicted need."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcheck.memory.fit import ABOVE, DOES_NOT_FIT, FITS, RUNS, TOO_LARGE, UNCERTAIN, on_gpu, verdict_in


@pytest.mark.parametrize(
    ("low", "high", "limit", "word"),
    [
        (80, 95, 0.95, FITS),
        (80, 96, 0.95, UNCERTAIN),
        (80, 101, 1.0, UNCERTAIN),
        (95, 99, 0.95, UNCERTAIN),
        (96, 99, 0.95, DOES_NOT_FIT),
        (100, 100, 1.0, FITS),
        (101, 120, 1.0, DOES_NOT_FIT),
        (0, 500, 0.95, UNCERTAIN),
    ],
)
def test_the_whole_interval_decides(low: int, high: int, limit: float, word: str) -> None:
    """Below the limit, across it, or above it; the capacity is a limit, too."""
    assert verdict_in((low, high), 100, limit) == word


@given(st.tuples(*[st.integers(0, 300)] * 3).map(sorted), st.floats(0.01, 1.0))
def test_the_words_agree_with_the_need(ends: list[int], limit: float) -> None:
    """A plan fits exactly if its upper end does. A need above the limit never fits; one within it never fails to."""
    low, need, high = ends
    word, gpu = verdict_in((low, high), 100, limit), on_gpu(need, high, 100, limit)
    assert (word == FITS) == (gpu == FITS)
    if gpu in RUNS:
        assert word != DOES_NOT_FIT
    if word == DOES_NOT_FIT:
        assert gpu in (ABOVE, TOO_LARGE)
