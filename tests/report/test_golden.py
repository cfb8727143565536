"""Every rule's finding is said as it was. ``python -m tests.report.regenerate`` after a change of words or figures."""

from __future__ import annotations

import pytest

from memcheck.rules.registry import RULES
from tests.golden import parted
from tests.report.regenerate import HTML
from tests.report.rule_reports import CODES, FINDINGS, GOLDEN, SHOWN, as_rows, as_text, golden, rendered, table

KNOWN = as_rows(FINDINGS.read_text(encoding="utf-8"))


def test_findings_are_what_they_were() -> None:
    """Place, key, message, help, other places, edits and remedies of every finding of a rule, character by character."""
    for code in CODES:
        now, known = ({name: row for name, row in rows.items() if name.startswith(code)} for rows in (table(), KNOWN))
        assert now == known, code
        assert now, code


def test_the_table_can_be_read_back() -> None:
    """Nothing is lost in the form that the table is kept in."""
    assert as_rows(as_text(table())) == table()


@pytest.mark.parametrize("code", SHOWN)
def test_reports_are_unchanged(code: str) -> None:
    """For people, for programs, for code scanning and for annotations, byte for byte."""
    known, now = parted(golden(code).read_text(encoding="utf-8")), rendered(code)
    assert list(now) == list(known)
    for name, text in now.items():
        assert text == known[name], name


def test_every_rule_has_its_row() -> None:
    """Every rule has an example and a row, and nothing is left of a rule that is gone."""
    assert CODES == [rule.code for rule in RULES] == list(dict.fromkeys(name.split()[0] for name in KNOWN))
    assert set(GOLDEN.iterdir()) == {FINDINGS, HTML, *map(golden, SHOWN)}


def test_reports_fit_the_screen() -> None:
    """Nothing for people is wider than the 100 columns that it was laid out for."""
    for code in CODES:
        assert [line for line in rendered(code)["full"].splitlines() if len(line) > 100] == [], code
