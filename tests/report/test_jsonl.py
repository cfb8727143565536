"""The JSON report in lines."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from memcheck.report.json import document
from tests.report.formats import NAMES, rendered, report


def lines(name: str) -> list[dict]:
    """A report's objects."""
    return [json.loads(line) for line in rendered("jsonl", name).splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_every_line_is_one_object(name: str) -> None:
    """In the order plan, its findings, next plan; then what could not be read; the summary closes the file."""
    types = [record["type"] for record in lines(name)]
    expected = [kind for plan in report(name).plans for kind in ("plan", *["diagnostic"] * len(plan.findings))]
    assert types == [*expected, *["unreadable"] * len(report(name).unreadable), "summary"]


@pytest.mark.parametrize("name", NAMES)
def test_objects_are_those_of_the_json_report(name: str) -> None:
    """The same fields and values; a finding names its plan, since it stands alone."""
    found = lines(name)
    whole = json.loads(json.dumps(document(report(name))).encode("utf-8", "backslashreplace"))
    plans = [{k: v for k, v in record.items() if k != "type"} for record in found if record["type"] == "plan"]
    assert plans == [{k: v for k, v in plan.items() if k != "diagnostics"} for plan in whole["plans"]]
    diagnostics = [record for record in found if record["type"] == "diagnostic"]
    expected = [
        {"type": "diagnostic", "path": plan["path"], "document": plan["document"], "plan": plan["name"], **diagnostic}
        for plan in whole["plans"]
        for diagnostic in plan["diagnostics"]
    ]
    assert diagnostics == expected
    assert {k: v for k, v in found[-1].items() if k not in {"type", "report", "memcheck"}} == whole["summary"]


def test_objects_follow_the_report_s_schema(root: Path) -> None:
    """Its definitions describe the lines, too."""
    schema = json.loads((root / "schemas" / "report.schema.json").read_text(encoding="utf-8"))
    for record in lines("rules"):
        if record["type"] in {"plan", "diagnostic"}:
            wanted = {**schema, **schema["definitions"][record["type"]]}
            jsonschema.Draft7Validator(wanted).validate(record)
