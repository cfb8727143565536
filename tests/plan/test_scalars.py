from __future__ import annotations

import datetime as dt
import math

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from memcheck.plan.read import load_documents

PLAIN = st.text("0123456789abefFxo_:.+-nNyYtTrRuUiIsSlL~%", min_size=1, max_size=12)


def value_of(text: str) -> object:
    (document,) = load_documents("x.yaml", f"- {text}\n".encode())
    assert isinstance(document.values, list)
    return document.values[0]


@given(PLAIN)
@example("0_")
@example("1e5")
@example("-0o17")
@example("190:20:30")
@example("-190:20:30.15")
@example("+.inf")
@example("0b1010_0111")
@example("-0x_0A_74_AE")
@example("685_230.15")
@example("1.")
@example("+.INF")
@example(".NaN")
@example("0xAF")
@example("90%")
def test_unquoted_scalars_mean_what_pyyaml_says(text):
    """Every unquoted word is read as PyYAML's safe loader reads it, except that dates stay text."""
    source = f"- {text}\n"
    try:
        (expected,) = yaml.load(source, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, TypeError):
        return  # PyYAML fails on `0x_` and on days that no month has
    if isinstance(expected, (dict, list, dt.date)):
        return
    got = value_of(text)
    assert type(got) is type(expected)
    assert got == expected or (math.isnan(got) and math.isnan(expected))


def test_a_date_stays_text():
    """JSON has no dates, so a name such as 2026-11-20 is that text."""
    assert value_of("2026-11-20") == "2026-11-20"


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "9" * 5000])
def test_a_number_of_thousands_of_digits_is_read_as_infinite(text):
    """Python refuses to parse such an integer; the reader goes on with something that no key accepts."""
    assert math.isinf(value_of(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [("!!str 012", "012"), ("!!int '12'", 12), ("!!float 1e-5", 1e-5), ("!!bool yes", True), ("!!null ''", None)],
)
def test_tags_choose_the_type(text, value):
    """An explicit tag of YAML's own types wins over the look of the scalar."""
    assert value_of(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("!!int abc", "cannot be read as `!!int`"),
        ("!!python/name:os.system ''", "no meaning"),
        ("!mine x", "no meaning"),
    ],
)
def test_other_tags_are_findings(text, words):
    """A tag that no plan needs is an error at its place, and nothing is constructed."""
    (document,) = load_documents("x.yaml", f"a: {text}\n".encode())
    (finding,) = document.findings
    assert (finding.code, finding.location.span.line) == ("MEM002", 1)
    assert words in finding.message
