"""Checkstyle XML, held against the schema kept in ``tests/data``."""

from __future__ import annotations

import pytest
import xmlschema

from memcheck.report.ci import checkstyle
from tests.report import samples
from tests.report.formats import DATA, NAMES, parsed, rendered, report


@pytest.fixture(scope="module")
def schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(str(DATA / "checkstyle.xsd"))


@pytest.mark.parametrize("name", NAMES)
def test_report_follows_the_schema(schema: xmlschema.XMLSchema, name: str) -> None:
    """Whatever plans are called and whatever stands in them."""
    schema.validate(rendered("checkstyle", name))


def test_schema_notices(schema: xmlschema.XMLSchema) -> None:
    """Columns from 0 and severities that do not exist are refused."""
    text = rendered("checkstyle", "mixed")
    assert not schema.is_valid(text.replace('column="3"', 'column="0"'))
    assert not schema.is_valid(text.replace('severity="error"', 'severity="fatal"'))


def test_every_finding_is_an_error_of_its_file() -> None:
    """Line, column, severity, what is wrong and what to do, and the rule."""
    (file,) = parsed(checkstyle(report("mixed")))
    assert file.get("name") == samples.PATH
    assert [(error.get("line"), error.get("severity"), error.get("source")) for error in file] == [
        ("11", "error", "memcheck.MEM101"),
        ("8", "warning", "memcheck.MEM203"),
        ("11", "error", "memcheck.MEM010"),
    ]
    assert file[0].get("message") == f"{samples.over().message} ({samples.over().help})"


def test_clean_files_are_listed() -> None:
    """A reader sees that they were looked at."""
    (file,) = parsed(checkstyle(report("clean")))
    assert list(file) == []


def test_the_same_error_of_a_shared_base_is_said_once() -> None:
    """Two plans that extend one file do not report its line twice."""
    finding = samples.over()._replace(location=samples.at(3, 1, 4, path="base.yaml"))
    plan = samples.result("failed", (finding,))
    root = parsed(checkstyle(samples.report(plan, plan._replace(path="b.yaml"))))
    assert [(file.get("name"), len(file)) for file in root] == [(samples.PATH, 0), ("base.yaml", 1), ("b.yaml", 0)]
