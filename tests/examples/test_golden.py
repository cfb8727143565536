"""The examples' reports are what they were. ``python -m tests.examples.regenerate`` after a change of the engine."""

from __future__ import annotations

import pytest

from tests.examples.rendered import GOLDEN, NAMES, golden, rendered
from tests.golden import parted


@pytest.mark.parametrize("name", NAMES)
def test_reports_are_unchanged(name: str) -> None:
    """Every figure and every line for people, byte for byte."""
    now, known = rendered(name), parted(golden(name).read_text(encoding="utf-8"))
    assert now["figures"] == known["figures"]
    assert now == known


def test_there_is_one_file_per_example() -> None:
    """No golden file is left of an example that is gone."""
    assert set(GOLDEN.iterdir()) == {golden(name) for name in NAMES}


def test_reports_fit_the_screen() -> None:
    """Nothing is wider than the 100 columns that it was laid out for."""
    for name in NAMES:
        lines = rendered(name)["full"].splitlines()
        assert [line for line in lines if len(line) > 100] == [], name
