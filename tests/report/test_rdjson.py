"""Reviewdog's format."""

from __future__ import annotations

import json

import jsonschema
import pytest

from memcheck.plan.finding import Edit, Span
from memcheck.report.ci import merged, rdjson
from tests.report import samples
from tests.report.formats import NAMES, rendered, report, schema


@pytest.mark.parametrize("name", NAMES)
def test_report_follows_the_documented_form(name: str) -> None:
    """No field that the format does not have, no line or column below 1."""
    validator = jsonschema.Draft7Validator(schema("rdjson.schema.json"))
    assert [error.message for error in validator.iter_errors(json.loads(rendered("rdjson", name)))] == []


def test_diagnostic_says_what_and_where() -> None:
    """Message with remedies and help, the range with its exclusive end, severity, rule, related places."""
    first, second, third = json.loads(rdjson(report("mixed")))["diagnostics"]
    assert first["message"].splitlines()[0] == samples.over().message
    assert first["message"].splitlines()[-1] == f"help: {samples.over().help}"
    assert first["location"] == {
        "path": samples.PATH,
        "range": {"start": {"line": 11, "column": 3}, "end": {"line": 11, "column": 22}},
    }
    assert [each["severity"] for each in (first, second, third)] == ["ERROR", "WARNING", "ERROR"]
    assert first["code"] == {"value": "MEM101"}
    assert [place["message"] for place in first["related_locations"]] == [
        "39.38 GiB usable of 40 GB",
        "activations grow with this",
    ]


def test_columns_count_bytes() -> None:
    """The format wants UTF-8 bytes: behind an emoji a column is three more than its character."""
    finding = samples.over()._replace(location=samples.at(1, 9, 10), related=(), remedies=())
    plan = samples.result("failed", (finding,), sources={samples.PATH: ("name: 🚀é x",)})
    ((diagnostic),) = json.loads(rdjson(samples.report(plan)))["diagnostics"]
    assert diagnostic["location"]["range"] == {"start": {"line": 1, "column": 13}, "end": {"line": 1, "column": 14}}


def test_suggestions_are_edits_of_the_same_line() -> None:
    """Reviewdog posts a suggestion only on the lines of its diagnostic: fixes and remedies elsewhere are left to the text."""
    here = Edit(Span(11, 3, 11, 19), "micro_batch_size")
    finding = samples.over()._replace(fix=(here,))
    (diagnostic,) = json.loads(rdjson(samples.report(samples.result("failed", (finding,)))))["diagnostics"]
    assert diagnostic["suggestions"] == [
        {
            "range": {"start": {"line": 11, "column": 3}, "end": {"line": 11, "column": 19}},
            "text": "micro_batch_size",
        }
    ]
    on_line_16 = samples.over()._replace(location=samples.at(16, 29, 33))
    (diagnostic,) = json.loads(rdjson(samples.report(samples.result("failed", (on_line_16,)))))["diagnostics"]
    assert [suggestion["text"] for suggestion in diagnostic["suggestions"]] == ["full"]


def test_edits_of_one_line_become_one() -> None:
    """A suggestion is one replacement: what lies between two edits is kept."""
    lines = ("hardware: {gpu: a10g, gpus_per_node: 1}",)
    edits = (Edit(Span(1, 38, 1, 39), "8"), Edit(Span(1, 17, 1, 21), "h100-80gb"))
    assert merged(edits, 1, lines) == Edit(Span(1, 17, 1, 39), "h100-80gb, gpus_per_node: 8")
    assert merged((*edits, Edit(Span(2, 1, 2, 2), "x")), 1, lines) is None
    assert merged((), 1, lines) is None


def test_page_on_the_web_is_named_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is a link where the pages are published."""
    monkeypatch.setenv("MEMCHECK_DOCS_URL", "https://example.org/rules")
    first = json.loads(rdjson(report("mixed")))["diagnostics"][0]
    assert first["code"] == {"value": "MEM101", "url": "https://example.org/rules/MEM1xx.md#mem101"}
