"""Sizes on the command line."""

from __future__ import annotations

import pytest

from memcheck.errors import UsageError
from memcheck.why.readings import parse_size


@pytest.mark.parametrize(
    ("text", "metric", "count"),
    [
        ("61.3GiB", "any", int(61.3 * 2**30)),
        ("61.3 gib", "any", int(61.3 * 2**30)),
        ("65.8GB", "any", 65_800_000_000),
        ("512MiB", "any", 512 * 2**20),
        ("1,5GiB", "any", int(1.5 * 2**30)),
        ("reserved=40GiB", "reserved", 40 * 2**30),
        ("Allocated=123B", "allocated", 123),
        ("device = 1TiB", "device", 2**40),
    ],
)
def test_sizes(text: str, metric: str, count: int) -> None:
    """Binary and decimal units are different things; the quantity may be named."""
    reading = parse_size(text)
    assert reading is not None
    assert (reading.metric, reading.bytes) == (metric, count)


@pytest.mark.parametrize("text", ["61.3", "reserved=40"])
def test_a_number_without_unit_is_refused(text: str) -> None:
    """61.3 may be GB or GiB: seven percent apart."""
    with pytest.raises(UsageError, match="no unit"):
        parse_size(text)


@pytest.mark.parametrize("text", ["train.log", "memory: 33.31GiB(41%)", "peak=3GiB", "GiB", "", "9" * 400 + "GiB"])
def test_other_text_is_no_size(text: str) -> None:
    """Files and log lines are read elsewhere."""
    assert parse_size(text) is None
