"""Every rule's finding is said as it was. ``python -m tests.report.regenerate`` after a change of words or figures."""

from __future__ import annotations

import json

import pytest

from memcheck.rules.registry import RULES
from tests.golden import parted
from tests.report.regenerate import HTML
from tests.report.rule_reports import CODES, GOLDEN, PLACES, golden, places, rendered

KNOWN = json.loads(PLACES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("code", CODES)
def test_reports_are_unchanged(code: str) -> None:
    """For people, for programs, for code scanning and for annotations, byte for byte."""
    known = parted(golden(code).read_text(encoding="utf-8"))
    assert list(rendered(code)) == list(known)
    for name, text in rendered(code).items():
        assert text == known[name], name


@pytest.mark.parametrize("code", CODES)
def test_findings_are_where_they_were(code: str) -> None:
    """Rule, severity, line, columns and key are kept by hand: regenerating the reports cannot move one in silence."""
    assert places(code) == KNOWN[code]
    assert any(f" {code} " in place for place in KNOWN[code])


def test_every_rule_has_its_golden_file() -> None:
    """One file per rule, none left of a rule that is gone."""
    assert CODES == [rule.code for rule in RULES] == list(KNOWN)
    assert set(GOLDEN.iterdir()) == {PLACES, HTML, *(golden(code) for code in CODES)}


@pytest.mark.parametrize("code", CODES)
def test_reports_fit_the_screen(code: str) -> None:
    """Nothing for people is wider than the 100 columns that it was laid out for."""
    assert [line for line in rendered(code)["full"].splitlines() if len(line) > 100] == []
