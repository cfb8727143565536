"""Reports that every format is held against."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

from memcheck.edge.screen import Screen
from memcheck.report import renderer
from memcheck.rules.result import Report, Unreadable
from tests.report import samples
from tests.report.rule_reports import CODES, at_root, report_of

DATA = Path(__file__).resolve().parents[1] / "data"

NAMES = ("mixed", "clean", "empty", "unreadable", "pipeline", "evil", "rules")


def report(name: str) -> Report:
    """One of the reports; ``rules`` has the findings of every rule's bad example."""
    if name == "rules":
        return Report("0.1.0", tuple(plan for code in CODES for plan in report_of(code).plans))
    return {
        "mixed": samples.mixed(),
        "clean": samples.report(samples.result()),
        "empty": samples.report(),
        "unreadable": samples.report(samples.result(), unreadable=(Unreadable("a.yaml", "Permission denied"),)),
        "pipeline": samples.report(samples.result(estimate=samples.estimate(ranks=4))),
        "evil": samples.evil(),
    }[name]


def rendered(form: str, name: str) -> str:
    """A report in a format, as a file holds it."""
    with at_root():
        text = renderer(form)(report(name), Screen())
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def parsed(text: str) -> ET.Element:
    """An XML report as its readers see it."""
    return ET.fromstring(text)  # noqa: S314 - what memcheck has just written


def schema(name: str) -> dict:
    """A JSON Schema kept with the tests."""
    return json.loads((DATA / name).read_text(encoding="utf-8"))
