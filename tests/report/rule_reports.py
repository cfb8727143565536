"""What memcheck says about every rule's bad example, as the golden files keep it.

Figures belong to the rules about memory alone; other rules' findings are shown without the estimate, so that these
files do not move with the engine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from memcheck.check import Gate, check_file
from memcheck.edge.screen import Screen
from memcheck.report import github
from memcheck.report.full import render as render_full
from memcheck.report.json import document as json_document
from memcheck.report.links import DOCS_URL
from memcheck.report.repository import WORKSPACES
from memcheck.report.sarif import document
from memcheck.result import PlanResult, Report
from memcheck.what_if import with_remedies
from tests.rules.configured import settings_of

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).resolve().parent / "golden"
PLACES = GOLDEN / "places.json"
CODES = sorted(path.name.partition(".")[0] for path in (ROOT / "docs" / "rules" / "examples").glob("*.bad.yaml"))
VERSION = "0.0.0"
"""A release does not move the golden files."""

_SCREEN = Screen(width=100)


@contextmanager
def at_root() -> Iterator[None]:
    """Stand where people stand, outside of any runner, so that paths read as they do on their screens."""
    before, environment = os.getcwd(), {name: os.environ.pop(name, None) for name in (*WORKSPACES, DOCS_URL)}
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)
        os.environ.update({name: value for name, value in environment.items() if value is not None})


@cache
def report_of(code: str) -> Report:
    """The findings of one rule in its bad example."""
    path = f"docs/rules/examples/{code}.bad.yaml"
    with at_root():
        data = Path(path).read_bytes()
        gate = Gate(profile="research", remedies=with_remedies, settings=settings_of(data))
        plans, traces = check_file(path, data, gate)
    if traces:
        raise AssertionError("\n".join(traces))
    return Report(VERSION, tuple(only(code, plan) for plan in plans))


def only(code: str, plan: PlanResult) -> PlanResult:
    """A result with what one rule has to say."""
    plan = plan._replace(findings=tuple(finding for finding in plan.findings if finding.code == code))
    return plan if code.startswith("MEM1") else plan._replace(estimate=None, assumptions=())


def rendered(code: str) -> dict[str, str]:
    """Format to text."""
    report = report_of(code)
    with at_root():
        return {
            "full": render_full(report, _SCREEN),
            "json": diagnostics(report),
            "sarif": json.dumps(without_help(document(report)), indent=1, ensure_ascii=False) + "\n",
            "github": github.render(report, _SCREEN, "token"),
        }


def diagnostics(report: Report) -> str:
    """The plans of the JSON report without figures, which ``tests/examples`` holds."""
    plans = [{**plan, "estimate": None} for plan in json_document(report)["plans"]]
    return json.dumps(plans, indent=1, ensure_ascii=False) + "\n"


def without_help(log: dict) -> dict:
    """A log without the rules' pages, which ``docs/rules`` holds."""
    for rule in log["runs"][0]["tool"]["driver"]["rules"]:
        del rule["help"], rule["fullDescription"]
    return log


def golden(code: str) -> Path:
    """The golden file of one rule, with a section for each format."""
    return GOLDEN / f"{code}.txt"


def places(code: str) -> list[str]:
    """Where the findings are: severity, code, line and columns, pointer."""
    return [
        f"{finding.severity} {finding.code} {span.line}:{span.column}-{span.end_column} {finding.pointer or '/'}"
        for plan in report_of(code).plans
        for finding in plan.findings
        for span in [finding.location.span]
    ]
