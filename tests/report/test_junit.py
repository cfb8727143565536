"""JUnit XML, held against the schema kept in ``tests/data``."""

from __future__ import annotations

import pytest
import xmlschema

from memcheck.report.ci import junit
from tests.report import samples
from tests.report.formats import DATA, NAMES, parsed, rendered, report

SUITE = '<testsuite name="a" tests="1" failures="1" errors="0"><testcase name="a" classname="b">'


@pytest.fixture(scope="module")
def schema() -> xmlschema.XMLSchema:
    return xmlschema.XMLSchema(str(DATA / "junit.xsd"))


@pytest.mark.parametrize("name", NAMES)
def test_report_follows_the_schema(schema: xmlschema.XMLSchema, name: str) -> None:
    """Whatever plans are called and whatever stands in them."""
    schema.validate(rendered("junit", name))


@pytest.mark.parametrize(
    "text",
    [
        "<testsuites/>",
        '<testsuites tests="1" failures="0" errors="0"><testcase name="a" classname="b"/></testsuites>',
        f'{SUITE}<failure message="m" type="t"/><failure message="m" type="t"/></testcase></testsuite>',
        f'{SUITE}<failure message="" type="t"/></testcase></testsuite>',
    ],
)
def test_schema_notices(schema: xmlschema.XMLSchema, text: str) -> None:
    """Missing counts, a case outside of a suite, two failures in one case and an empty message are refused."""
    assert not schema.is_valid(text)


@pytest.mark.parametrize("name", NAMES)
def test_counts_add_up(name: str) -> None:
    """The numbers that CI servers show are those of the cases."""
    root = parsed(rendered("junit", name))
    for element in (root, *root):
        cases = list(element.iter("testcase"))
        assert int(element.get("tests")) == len(cases)
        assert int(element.get("failures")) == sum(case.find("failure") is not None for case in cases)
        assert int(element.get("errors")) == sum(case.find("error") is not None for case in cases)


def test_a_suite_per_file_and_a_case_per_plan_and_rule() -> None:
    """Plans without findings pass under their own name; each rule that found something is a case of its own."""
    (suite,) = parsed(junit(report("mixed")))
    assert suite.get("name") == samples.PATH
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("llama-3.1-8b-docs-sft", ["system-out"]),
        ("llama-3.1-8b-docs-sft: MEM101 exceeds-capacity", ["failure"]),
        ("second: MEM203 tensor-across-nodes", ["system-out"]),
        ("broken: MEM010 unknown-key", ["failure"]),
    ]
    assert {case.get("file") for case in suite} == {samples.PATH}
    assert suite[1].get("line") == "11"


def test_failure_is_the_report_for_people() -> None:
    """The message alone in lists; source lines, the memory budget and the remedies behind a click."""
    failure = parsed(junit(report("mixed"))).find(".//failure")
    assert failure.get("message") == samples.over().message
    assert failure.get("type") == "error MEM101"
    for part in ("11 |   micro_batch_size: 4", "optimizer states", "missing", "remedy (", "137.9% -> 79.2%", "help: "):
        assert part in failure.text


def test_findings_of_one_rule_are_one_case() -> None:
    """Several readers keep only the first failure of a case, so all of them stand in it."""
    findings = tuple(samples.over()._replace(message=text) for text in ("first", "second"))
    (case,) = parsed(junit(samples.report(samples.result("failed", findings)))).iter("testcase")
    (failure,) = case
    assert failure.get("message") == "first"
    assert "MEM101: second" in failure.text


def test_warnings_fail_only_where_they_failed_the_plan() -> None:
    """Under ``--fail-on warning`` a plan can fail without an error."""
    warning = samples.over()._replace(severity="warning")
    for status, expected in (("passed", "system-out"), ("failed", "failure")):
        (case,) = parsed(junit(samples.report(samples.result(status, (warning,))))).iter("testcase")
        assert [child.tag for child in case] == [expected]


def test_what_is_not_the_plan_s_fault_is_an_error() -> None:
    """Unreadable paths and defects of memcheck count as errors, not as failures."""
    unreadable = parsed(junit(report("unreadable"))).findall(".//error")
    assert [error.get("message") for error in unreadable] == ["Permission denied"]
    defect = samples.over()._replace(code="MEM000")
    (case,) = parsed(junit(samples.report(samples.result("error", (defect,), estimate=None)))).iter("testcase")
    assert case[0].tag == "error"
