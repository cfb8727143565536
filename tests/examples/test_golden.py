"""The examples' reports are what they were. ``python -m tests.examples.regenerate`` after a change of the engine."""

from __future__ import annotations

import pytest

from tests.examples.rendered import GOLDEN, NAMES, record, results, text


@pytest.mark.parametrize("name", NAMES)
def test_reports_are_unchanged(name: str) -> None:
    """Every figure and every line for people, byte for byte."""
    plans = results(name)
    assert record(plans) == (GOLDEN / f"{name}.json").read_text(encoding="utf-8")
    assert text(plans) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_there_is_one_pair_per_example() -> None:
    """No golden file is left of an example that is gone."""
    assert {path.name for path in GOLDEN.iterdir()} == {name + end for name in NAMES for end in (".txt", ".json")}


@pytest.mark.parametrize("name", NAMES)
def test_reports_fit_the_screen(name: str) -> None:
    """Nothing is wider than the 100 columns that it was laid out for."""
    lines = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if len(line) > 100] == []
