"""What memcheck says about the plans of ``examples/``, as the golden files keep it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from memcheck import __version__
from memcheck.edge.screen import Screen
from memcheck.judge import Gate, check_file
from memcheck.report.full import render
from memcheck.report.json import document
from memcheck.rules.result import PlanResult, Report
from memcheck.what_if import with_remedies

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).resolve().parent / "golden"
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))

KEPT = (
    "allocated_bytes",
    "reserved_bytes",
    "device_bytes",
    "capacity_bytes",
    "instant",
    "pipeline_rank",
    "components_bytes",
    "parameters",
    "trainable_parameters",
    "host_bytes_per_node",
)
"""Of an estimate's record; the rest is in the text, or follows from these."""


@contextmanager
def at_root() -> Iterator[None]:
    """Stand where people stand, so that paths read as they do on their screens."""
    before = os.getcwd()
    os.chdir(ROOT)
    try:
        yield
    finally:
        os.chdir(before)


@cache
def results(name: str) -> list[PlanResult]:
    """The verdict on every document of one example."""
    path = f"examples/{name}.yaml"
    with at_root():
        plans, traces = check_file(path, Path(path).read_bytes(), Gate(remedies=with_remedies))
    if traces:
        raise AssertionError("\n".join(traces))
    return plans


def golden(name: str) -> Path:
    """The golden file of one example, with a section for people and one with the figures."""
    return GOLDEN / f"{name}.txt"


def rendered(name: str) -> dict[str, str]:
    """Section to text."""
    plans = results(name)
    return {"full": text(plans), "figures": record(plans)}


def text(plans: list[PlanResult]) -> str:
    """The report for people, on a screen of 100 columns without colours."""
    return render(Report(__version__, tuple(plans)), Screen(width=100))


def record(plans: list[PlanResult]) -> str:
    """The figures and the findings, as JSON."""
    report = json.loads(json.dumps(document(Report(__version__, tuple(plans)))))
    return json.dumps([_plan(plan) for plan in report["plans"]], indent=1) + "\n"


def _plan(plan: dict) -> dict:
    estimate = plan["estimate"]
    return {
        "name": plan["name"],
        "status": plan["status"],
        "estimate": estimate and {key: estimate[key] for key in KEPT},
        "diagnostics": [
            {
                "code": finding["code"],
                "severity": finding["severity"],
                "pointer": finding["pointer"],
                "line": finding["location"]["line"],
                "remedies": [
                    {"set": remedy["set"], "utilization": round(remedy["utilization"], 4)}
                    for remedy in finding["remedies"]
                ],
            }
            for finding in plan["diagnostics"]
        ],
    }
