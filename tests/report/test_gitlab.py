"""GitLab's Code Quality report."""

from __future__ import annotations

import json

import jsonschema
import pytest

from memcheck.report.ci import gitlab, severity
from tests.report import samples
from tests.report.formats import NAMES, rendered, report, schema


def issues(name: str) -> list[dict]:
    """A report as GitLab reads it."""
    return json.loads(rendered("gitlab", name))


@pytest.mark.parametrize("name", NAMES)
def test_report_follows_the_documented_form(name: str) -> None:
    """Every required field and no other; paths are relative, lines count from 1."""
    validator = jsonschema.Draft7Validator(schema("gitlab-codequality.schema.json"))
    assert [error.message for error in validator.iter_errors(issues(name))] == []


@pytest.mark.parametrize("name", NAMES)
def test_fingerprints_are_unique(name: str) -> None:
    """GitLab shows findings of equal fingerprint as one."""
    found = [issue["fingerprint"] for issue in issues(name)]
    assert len(set(found)) == len(found)
    assert rendered("gitlab", name) == rendered("gitlab", name)


def test_fingerprint_survives_lines_above() -> None:
    """A finding that only moved is not shown as new."""
    plan = samples.result("failed", (samples.over(),))
    moved = samples.result("failed", (samples.over()._replace(location=samples.at(90, 1, 2)),))
    ((first,), (second,)) = (json.loads(gitlab(samples.report(each))) for each in (plan, moved))
    assert first["fingerprint"] == second["fingerprint"]
    assert (first["location"]["lines"]["begin"], second["location"]["lines"]["begin"]) == (11, 90)


def test_severities_rank_memory_first() -> None:
    """A plan that does not fit blocks; other errors are critical; the mild ones follow."""
    over = samples.over()
    other = over._replace(code="MEM203")
    assert [
        severity(finding._replace(severity=kind)) for finding in (over, other) for kind in ("error", "warning", "info")
    ] == [
        "blocker",
        "major",
        "info",
        "critical",
        "minor",
        "info",
    ]


def test_clean_report_is_an_empty_array() -> None:
    """Which closes what the last one had."""
    assert issues("clean") == issues("empty") == []
    assert [issue["check_name"] for issue in json.loads(gitlab(report("mixed")))] == [
        "exceeds-capacity",
        "tensor-across-nodes",
        "unknown-key",
    ]


def test_paths_are_those_of_the_project(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that works in a folder of the project still names files from its root."""
    folder = tmp_path / "plans"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CI_PROJECT_DIR", str(tmp_path))
    finding = samples.over()._replace(location=samples.at(1, 1, 2, path="./a.yaml"))
    (issue,) = json.loads(gitlab(samples.report(samples.result("failed", (finding,), path="./a.yaml"))))
    assert issue["location"]["path"] == "plans/a.yaml"
