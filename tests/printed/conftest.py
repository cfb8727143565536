"""Fixtures of the tests about what is printed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memcheck.edge.screen import MADE


@pytest.fixture(autouse=True)
def _nothing_painted() -> Iterator[None]:
    """A process of its own has made no escape yet; tests before this one have."""
    before = set(MADE)
    MADE.clear()
    yield
    MADE.update(before)
