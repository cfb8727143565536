"""``required-version``."""

from __future__ import annotations

import pytest

from memcheck.config.read import accepts


@pytest.mark.parametrize(
    ("requirement", "version", "accepted"),
    [
        (">=0.1", "0.1.0", True),
        (">=0.1,<0.2", "0.1.9", True),
        (">=0.1,<0.2", "0.2.0", False),
        ("0.1.0", "0.1.0", True),
        ("0.1", "0.1.0", True),
        ("==0.1.0", "0.1.1", False),
        ("!=0.1.1", "0.1.1", False),
        (">0.9", "0.10", True),
        ("<=1", "1.0.1", False),
        (">=1", "1.0.0rc1", True),
    ],
)
def test_versions_compare_by_number(requirement: str, version: str, accepted: bool) -> None:
    """Releases compare number by number; without an operator the version must be the one named."""
    assert accepts(requirement, version) is accepted


@pytest.mark.parametrize("requirement", ["", "latest", ">=x", "~=1.0", ">=0.1,", ">=0.1 <0.2"])
def test_unreadable_requirement_is_an_error(requirement: str) -> None:
    """What cannot be compared must not be taken for satisfied."""
    with pytest.raises(ValueError, match="not a version requirement"):
        accepts(requirement, "0.1.0")
