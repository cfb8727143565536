"""COVERAGE.md is of today."""

from __future__ import annotations

import pytest

from benchmarks import coverage


@pytest.mark.slow
def test_the_page_is_of_today() -> None:
    """COVERAGE.md says which family is priced under which framework."""
    with open(coverage.TABLE, encoding="utf-8") as file:
        assert file.read() == coverage.table()
