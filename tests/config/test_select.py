"""Choosing rules."""

from __future__ import annotations

import pytest

from memcheck.config.find import counts, known
from memcheck.errors import UsageError


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ((), (), True),
        (("MEM1",), (), True),
        (("MEM2",), (), False),
        ((), ("MEM1",), False),
        (("MEM101",), ("MEM1",), True),
        (("MEM1",), ("MEM101",), False),
        (("MEM101",), ("MEM101",), False),
        (("MEM",), ("MEM2",), True),
    ],
)
def test_longest_prefix_decides(select: tuple[str, ...], ignore: tuple[str, ...], expected: bool) -> None:
    """The more exact wish wins, and ignoring wins a tie."""
    assert counts("MEM101", select, ignore) is expected


def test_rules_may_be_named() -> None:
    """Names become codes, codes are taken in any case, prefixes stay prefixes."""
    assert known(["exceeds-capacity", "mem2", "MEM30"]) == ("MEM101", "MEM2", "MEM30")


@pytest.mark.parametrize("selector", ["MEM9", "exceed-capacity", "E501", "1"])
def test_selector_without_a_rule_is_an_error(selector: str) -> None:
    """A misspelt rule must not silently select nothing."""
    with pytest.raises(UsageError, match="no rule matches"):
        known([selector])
