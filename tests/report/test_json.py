"""The JSON report and its schema."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from memcheck.accounts.estimate import COMPONENTS
from memcheck.report.json import document, render, render_estimates
from memcheck.rules.result import Report, Unreadable
from tests.report import samples

REPORTS = {
    "mixed": samples.mixed(),
    "empty": samples.report(),
    "unreadable": samples.report(samples.result(), unreadable=(Unreadable("a.yaml", "Permission denied"),)),
    "pipeline": samples.report(samples.result(estimate=samples.estimate(ranks=4))),
}


@pytest.fixture(scope="module")
def schema(root: Path) -> dict[str, object]:
    return json.loads((root / "schemas" / "report.schema.json").read_text(encoding="utf-8"))


def closed(node: object) -> object:
    """The schema with every object closed, so that an undocumented field is an error."""
    if isinstance(node, dict):
        node = {key: closed(value) for key, value in node.items()}
        if node.get("type") == "object" and "properties" in node:
            node["additionalProperties"] = False
        return node
    return [closed(item) for item in node] if isinstance(node, list) else node


@pytest.mark.parametrize("name", REPORTS)
def test_report_follows_its_schema(schema: dict[str, object], name: str) -> None:
    """Every report is valid, and has no field that the schema does not document."""
    jsonschema.Draft7Validator.check_schema(schema)
    for text in (render(REPORTS[name]), render_estimates(REPORTS[name])):
        jsonschema.Draft7Validator(closed(schema)).validate(json.loads(text))


def test_schema_rejects_what_is_no_report(schema: dict[str, object]) -> None:
    """A report without its plans, or with a wrong status, is not valid."""
    good = json.loads(render(REPORTS["mixed"]))
    validator = jsonschema.Draft7Validator(schema)
    for spoil in ({"plans": None}, {"report": 2}, {"summary": {}}):
        assert not validator.is_valid({**good, **spoil})
    good["plans"][0]["status"] = "fine"
    assert not validator.is_valid(good)


def test_schema_documents_every_field(schema: dict[str, object]) -> None:
    """Every property of the schema says what it means."""

    def properties(node: object, path: str) -> list[str]:
        missing = []
        if isinstance(node, dict):
            for key, value in node.get("properties", {}).items():
                if "$ref" not in value and not value.get("description"):
                    missing.append(f"{path}/{key}")
                missing += properties(value, f"{path}/{key}")
            for key, value in node.get("definitions", {}).items():
                missing += [] if value.get("description") else [key]
                missing += properties(value, key)
        return missing

    assert properties(schema, "") == []


def test_schema_knows_every_component(schema: dict[str, object]) -> None:
    """The schema lists exactly the components of the engine."""
    components = schema["definitions"]["components"]
    assert tuple(components["properties"]) == tuple(components["required"]) == COMPONENTS


def test_surface_is_frozen() -> None:
    """The names that programs rely on: adding one is a change of this test, removing one a new report version."""
    found = document(samples.report(samples.result("failed", (samples.over(),), estimate=samples.estimate())))
    (plan,) = found["plans"]
    (diagnostic,) = plan["diagnostics"]
    assert list(found) == ["report", "memcheck", "summary", "plans", "unreadable"]
    judged = ["path", "document", "name", "status", "accepted", "model", "gpu", "gpus", "framework"]
    assert list(plan) == [*judged, "estimate", "diagnostics"]
    assert list(plan["estimate"]) == [
        "allocated_bytes",
        "reserved_bytes",
        "device_bytes",
        "capacity_bytes",
        "utilization",
        "verdict",
        "longest_row",
        "fits",
        "interval_bytes",
        "needed_bytes",
        "needed_interval_bytes",
        "instant",
        "operation",
        "pipeline_rank",
        "components_bytes",
        "cache_bytes",
        "parameters",
        "trainable_parameters",
        "host_bytes_per_node",
        "host_capacity_bytes",
        "host_components_bytes",
        "host_instant",
        "host_instants_bytes",
        "ranks",
        "largest_tensors",
        "rests_on",
        "settled_by",
        "assumptions",
    ]
    assert list(diagnostic) == [
        "code",
        "name",
        "severity",
        "message",
        "help",
        "location",
        "pointer",
        "related",
        "fix",
        "fixable",
        "remedies",
    ]
    assert list(diagnostic["remedies"][0]) == [
        "title",
        "set",
        "device_bytes",
        "utilization",
        "interval_bytes",
        "needed_bytes",
        "needed_interval_bytes",
        "group",
        "role",
        "slowdown",
        "safe",
        "sure",
        "host_bytes_per_node",
        "edits",
        "written",
        "elsewhere",
    ]


def test_summary_counts_plans_and_findings() -> None:
    """A plan that could not be estimated counts as failed; errors and warnings count findings, not plans."""
    counts = {"plans": 4, "passed": 2, "accepted": 0, "failed": 2, "uncertain": 0, "errors": 2, "warnings": 1}
    hidden = {"infos": 0, "unchanged": 0, "suppressed": 0, "baselined": 0, "deselected": 0}
    assert document(REPORTS["mixed"])["summary"] == {**counts, **hidden}


def test_numbers_are_those_of_the_estimate() -> None:
    """Bytes are passed on untouched, and the utilization is device over capacity."""
    result = samples.result()
    record = document(samples.report(result))["plans"][0]["estimate"]
    assert record["device_bytes"] == result.estimate.device_bytes
    assert sum(record["components_bytes"].values()) == record["device_bytes"]
    assert record["needed_bytes"] == record["device_bytes"] - record["cache_bytes"]
    assert record["utilization"] == pytest.approx(record["needed_bytes"] / record["capacity_bytes"], abs=1e-6)


def test_repeated_instants_count_with_their_highest() -> None:
    """An instant that occurs once per micro-batch is reported once, with its largest bytes."""
    estimate = samples.estimate()
    rank = estimate.ranks[0]
    low = rank.instants[1]._replace(allocated_bytes=1)
    estimate = estimate._replace(ranks=(rank._replace(instants=(*rank.instants, low)),))
    (record,) = document(samples.report(samples.result(estimate=estimate)))["plans"][0]["estimate"]["ranks"]
    assert record["instants_bytes"]["forward"] == rank.instants[1].allocated_bytes


def test_estimates_have_no_diagnostics_unless_they_failed() -> None:
    """``estimate`` gives numbers; only a plan without numbers says why."""
    plans = json.loads(render_estimates(REPORTS["mixed"]))["plans"]
    assert ["diagnostics" in plan for plan in plans] == [False, False, False, True]


def test_report_of_user_text_is_valid_json() -> None:
    """Control characters, quotes and lone surrogates of a plan end up escaped."""
    name = 'a"b\x1b[31m\ud800\n'
    text = render(Report("0.1.0", (samples.result(name=name),)))
    assert json.loads(text.encode("utf-8", "backslashreplace"))["plans"][0]["name"] == name
